"""`/v1/responses`, after the Open Responses specification.

    body -> items -> messages -> a chat ticket -> pieces -> Answer -> events and the response

Source: https://www.openresponses.org/specification
"""

from ortolan.server.api.responses.create import (
    create,
    delete_response,
    get_response,
    list_input_items,
)

__all__ = ["create", "delete_response", "get_response", "list_input_items"]
