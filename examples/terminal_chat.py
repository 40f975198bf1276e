"""Chat with a model in a terminal; answers appear as they are written.

    python examples/terminal_chat.py bundle/
    python examples/terminal_chat.py bundle/ --system "You answer in a few words."

The bundle needs a chat template. An empty line, or Ctrl-D, ends the program.
`ortolan chat` does the same with history, commands and progress.
"""

import argparse
from collections.abc import Iterator

import ortolan


def questions() -> Iterator[str]:
    """Lines of standard input until an empty one."""
    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        if not line:
            return
        yield line


def main() -> None:
    """Answer questions until there are no more."""
    parser = argparse.ArgumentParser(description="Chat with a model.")
    parser.add_argument("bundle")
    parser.add_argument("--system", help="what the model should know before the first question")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="longest answer")
    args = parser.parse_args()
    conversation = ortolan.load(args.bundle, ortolan.Decoder).conversation(system=args.system)
    for question in questions():
        with conversation.stream(question, max_new_tokens=args.max_new_tokens) as pieces:
            for piece in pieces:
                print(piece.content, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
