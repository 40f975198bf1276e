"""`/v1/responses`, after the Open Responses specification.

    body -> items -> messages -> a chat ticket -> pieces -> Answer -> events and the response

Source: https://www.openresponses.org/specification
"""
