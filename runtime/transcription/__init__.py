"""From sounds of any length to text, with times.

recording  ─►  windows of the sound as long as the encoder reads, one after another
timestamps     which tokens of time may follow, and the segments between them
transcriber    generates the text of each window, and moves to the end of its last whole segment
ctc            reads the text of a model with CTC off its logits, which windows compute
transcript     the result: segments, and the formats of subtitles
"""
