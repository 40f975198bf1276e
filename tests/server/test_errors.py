"""Statuses, and whether clients retry."""

import msgspec
import pytest

from ortolan.runtime import errors
from ortolan.server.errors import api_error


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (errors.InputError("a"), 400, None),
        (errors.ContextLengthError("a"), 400, None),
        (errors.ChatTemplateError("a"), 400, None),
        (errors.MemoryPlanError("a"), 400, None),
        (msgspec.ValidationError("a"), 400, None),
        (errors.BundleFileError("a"), 503, "false"),
        (errors.DeviceError("a"), 503, "false"),
        (errors.ServiceClosedError("a"), 503, None),
        (errors.ServiceError("a"), 500, "false"),
        (errors.NumericError("a"), 500, "false"),
        (errors.ComputeError("a"), 500, "false"),
        (errors.MissingExtraError("a"), 501, "false"),
        (KeyError("secret"), 500, "false"),
    ],
)
def test_only_errors_that_may_pass_are_retried(
    error: Exception, status: int, retry: str | None
) -> None:
    answer = api_error(error)
    assert answer.status == status
    assert answer.headers.get("x-should-retry") == retry
    assert "secret" not in answer.message


def test_a_full_queue_names_the_time_in_both_units() -> None:
    answer = api_error(errors.QueueFullError("full", retry_after_s=0.25))
    assert answer.status == 429
    assert answer.headers == {"retry-after-ms": "250", "retry-after": "1"}
