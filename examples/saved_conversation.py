"""Keep a conversation in a file: each run asks one question and remembers the earlier ones.

    python examples/saved_conversation.py bundle/ talk.json "My name is Ada."
    python examples/saved_conversation.py bundle/ talk.json "What is my name?"

The bundle needs a chat template. The file is JSON with the messages, and belongs to its bundle.
"""

import argparse
from pathlib import Path

import ortolan


def main() -> None:
    """Load the conversation, ask, and save it."""
    parser = argparse.ArgumentParser(description="Ask a question in a conversation kept in a file.")
    parser.add_argument("bundle")
    parser.add_argument("file", type=Path, help="the conversation; made if it does not exist")
    parser.add_argument("question")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="longest answer")
    args = parser.parse_args()
    conversation = ortolan.load(args.bundle, ortolan.Decoder).conversation()
    if args.file.exists():
        conversation.load(args.file)
    print(conversation.ask(args.question, max_new_tokens=args.max_new_tokens).content)
    conversation.save(args.file)


if __name__ == "__main__":
    main()
