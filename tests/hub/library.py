from tests.hub.server import hub as hub
from tests.hub.server import point_library_at as point_library_at
