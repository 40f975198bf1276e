"""Asks the publisher's own code the questions that a new bundle answers.

    ask            the export's side: a budget of memory and time, and the verdict
    child          the subprocess: every topic, question by question
    publisher      transformers, PEFT and sentence-transformers, loading the checkpoint their way
    bundled        the bundle through the public interface of the runtime
    compare        the first difference between two answers
    topics/        one file per topic: its questions, the bundle's answer, the publisher's answer

The certificate compares a bundle with PyTorch on what our own readers read. A mistake of a reader
is in both. The publisher's code reads the same files with other code.
"""
