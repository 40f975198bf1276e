"""`/v1/responses`, after the Open Responses specification.

    body -> items -> messages -> a chat ticket -> pieces -> Answer -> events and the response

Over HTTP, `create` does this for one body; over a WebSocket, `turns` does it for each message.

Source: https://www.openresponses.org/specification
"""

from ortolan.server.api.responses.create import ENDPOINTS
from ortolan.server.api.responses.turns import SOCKET

__all__ = ["ENDPOINTS", "SOCKET"]
