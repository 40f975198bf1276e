"""From a request to a text: sampling, stopping, beams."""
