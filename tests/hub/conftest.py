"""The local hub."""

from tests.hub.library import hub as hub
