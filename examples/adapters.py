"""One model, several LoRA adapters: each request chooses one, and all run in one batch.

    ortolan adapter lora/ build/lines --bundle bundle/ --checkpoint checkpoint/
    python examples/adapters.py bundle/ "def read_lines(path):" lines=build/lines

`lora/` is a folder that PEFT saved. The first text comes from the model without an adapter.
"""

import argparse

import ortolan


def main() -> None:
    """Continue the prompt without an adapter and with each."""
    parser = argparse.ArgumentParser(description="Continue a prompt with several adapters.")
    parser.add_argument("bundle")
    parser.add_argument("prompt")
    parser.add_argument("adapters", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--max-new-tokens", type=int, default=32, help="longest text")
    args = parser.parse_args()
    folders = dict(adapter.split("=", 1) for adapter in args.adapters)
    model = ortolan.load(args.bundle, ortolan.Decoder, adapters=folders)
    with model.serve(slots=8) as service:
        tickets = {
            name: service.submit(args.prompt, max_new_tokens=args.max_new_tokens, adapter=name)
            for name in (None, *folders)
        }
        for name, ticket in tickets.items():
            print(f"--- {name or 'no adapter'}\n{ticket.result().text}")


if __name__ == "__main__":
    main()
