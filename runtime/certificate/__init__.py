"""What PyTorch computed for some probes, and whether a bundle computes the same.

`fields` says what a certificate is, `files` reads and writes it, `replay` computes its probes in
every way that a runtime computes anything (`runs`) and compares them (`figures`).
"""

from ortolan.runtime.certificate.fields import (
    Certificate,
    Divergence,
    Logits,
    Phase,
    Probe,
    Report,
    Thresholds,
    Vectors,
)
from ortolan.runtime.certificate.figures import summarize
from ortolan.runtime.certificate.files import ARRAYS_NAME, JSON_NAME, read, write
from ortolan.runtime.certificate.replay import replay, verify

__all__ = [
    "ARRAYS_NAME",
    "JSON_NAME",
    "Certificate",
    "Divergence",
    "Logits",
    "Phase",
    "Probe",
    "Report",
    "Thresholds",
    "Vectors",
    "read",
    "replay",
    "summarize",
    "verify",
    "write",
]
