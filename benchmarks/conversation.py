"""Time to the first token of each turn of a conversation, against the cost of its new tokens.

    ortolan export CHECKPOINT BUNDLE --precision int8
    python benchmarks/conversation.py BUNDLE [--turns 10] [-n 48] [--rounds 3] [--threads 2]

New tokens of a turn are those of its prompt after the longest beginning that it shares with the
prompt before: the last answer and the new question. Their cost is the time that `Session.append`
takes for them after that beginning, which is there already; so states must be ones that grow. The
first token is timed from the question on, template and tokenizer included. `served` is the same
conversation through a service, and `anew` the same with `reuse=False`; all must give the same
tokens and log-probabilities.

Rounds take turns in one process; each figure is the least of all rounds, to which other work of the
machine has only added.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ortolan

QUESTIONS = (
    "What is the capital of France?",
    "And which river flows through it?",
    "Tell me more about that river, in two sentences.",
    "Which other large cities lie on it?",
    "What would you visit there in a single day, and in which order? I like old books and gardens.",
    "Is there a train?",
    "How long does it take by car?",
    "What should I eat for lunch?",
    "Write all of that as a short plan with times.",
    "Thank you. Translate the plan into French.",
)
"""One a turn, and from the first again."""


@dataclass
class Turn:
    """One turn; seconds of each round.

    Attributes:
        new: tokens that were not in the prompt before; `known` tokens were.
    """

    new: int
    known: int
    kept: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    anew: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def answer(
    conversation: ortolan.Conversation, question: str, limit: int
) -> tuple[float, ortolan.Reply]:
    """Seconds to the first token of an answer, and the whole of it."""
    begun_at = time.perf_counter()
    stream = conversation.stream(question, max_new_tokens=limit, logprobs=0)
    prepared_s = time.perf_counter() - begun_at
    reply = stream.finish()
    return prepared_s + reply.completion.timings.time_to_first_token_s, reply


def cost(model: ortolan.Decoder, prompt: Sequence[int], known: int) -> float:
    """Seconds that a prompt takes whose first tokens are there; of the second time."""
    with model.session() as session:
        if known:
            session.append(prompt[:known])
        for _ in range(2):  # the first one meets new memory
            session.rewind(known)
            begun_at = time.perf_counter()
            session.append(prompt[known:])
        return time.perf_counter() - begun_at


def measure(model: ortolan.Decoder, *, turns: int, limit: int, rounds: int) -> list[Turn]:
    """Hold the same conversation in each round, with and without reuse, and through a service."""
    found: list[Turn] = []
    model.generate("?", max_new_tokens=2)
    for _ in range(rounds):
        service = model.serve(slots=2)
        conversations = (
            model.conversation(), service.conversation(), model.conversation(reuse=False)
        )  # fmt: skip
        before: list[int] = []
        for number in range(turns):
            question = QUESTIONS[number % len(QUESTIONS)]
            answers = [answer(each, question, limit) for each in conversations]
            kept = conversations[0]
            got = [reply.completion for _, reply in answers]
            if len({(each.tokens, each.logprobs) for each in got}) > 1:
                raise SystemExit(f"turn {number + 1}: expected equal answers, got others")
            prompt = model.chat_template.prompt(kept.messages[:-1]).ids
            known = min(shared(before, prompt), len(prompt) - 1)
            if number == len(found):
                found.append(Turn(new=len(prompt) - known, known=known))
            turn = found[number]
            turn.kept.append(answers[0][0])
            turn.served.append(answers[1][0])
            turn.anew.append(answers[2][0])
            turn.cost.append(cost(model, prompt, known))
            before = prompt
        service.close()
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--turns", type=int, default=len(QUESTIONS))
    parser.add_argument("-n", "--max-new-tokens", type=int, default=48)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    model = ortolan.load(args.bundle, ortolan.Decoder, threads=args.threads)
    turns = measure(model, turns=args.turns, limit=args.max_new_tokens, rounds=args.rounds)
    print("| turn | known | new | cost of new, ms | first token, ms | ratio ", end="")
    print("| served, ms | ratio | anew, ms |\n" + "| ---: " * 9 + "|")
    for number, turn in enumerate(turns, 1):
        price, kept, served, anew = map(min, (turn.cost, turn.kept, turn.served, turn.anew))
        print(
            f"| {number} | {turn.known} | {turn.new} | {1e3 * price:.0f} | {1e3 * kept:.0f} "
            f"| {kept / price:.2f} | {1e3 * served:.0f} | {served / price:.2f} | {1e3 * anew:.0f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
