from tests.hub.server import hub as hub
