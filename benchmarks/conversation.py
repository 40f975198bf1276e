"""Time to the first token in each turn of a conversation, against the cost of its new tokens.

    ortolan export CHECKPOINT BUNDLE --precision int8
    python benchmarks/conversation.py BUNDLE [--turns 10] [-n 48] [--rounds 3] [--threads 2]

The new tokens of a turn are those after the prefix that its prompt shares with the previous one:
the last answer and the new question. Their cost is the time of `Session.append` for them after
that prefix, so the states must be ones that grow. Time to the first token includes template and
tokenizer. `served` is the same conversation through a service, and `anew` the same with
`reuse=False`; all must return the same tokens and log-probabilities.

Rounds alternate in one process. Figures are minimums over rounds, since other load only adds.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ortolan
from script import add_timing

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
"""One per turn; repeated if there are more turns."""


@dataclass
class Turn:
    """One turn, with the seconds of each round.

    Attributes:
        new: tokens that were not in the previous prompt, unlike the `reused` tokens.
    """

    new: int
    reused: int
    kept: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    anew: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def answer(
    conversation: ortolan.Conversation, question: str, limit: int
) -> tuple[float, ortolan.Reply]:
    """Seconds to the first token of an answer, and the answer."""
    begun_at = time.perf_counter()
    stream = conversation.stream(question, max_new_tokens=limit, logprobs=0)
    prepared_s = time.perf_counter() - begun_at
    reply = stream.finish()
    return prepared_s + reply.completion.timings.time_to_first_token_s, reply


def cost(model: ortolan.Decoder, prompt: Sequence[int], reused: int) -> float:
    """Seconds to append a prompt after its reused tokens, measured the second time."""
    with model.session() as session:
        if reused:
            session.append(prompt[:reused])
        for _ in range(2):  # the first time touches new memory
            session.rewind(reused)
            begun_at = time.perf_counter()
            session.append(prompt[reused:])
        return time.perf_counter() - begun_at


def measure(model: ortolan.Decoder, *, turns: int, limit: int, rounds: int) -> list[Turn]:
    """Hold the same conversation in each round: with and without reuse, and through a service."""
    results: list[Turn] = []
    model.generate("?", max_new_tokens=2)
    for _ in range(rounds):
        service = model.serve(slots=2)
        conversations = (
            model.conversation(), service.conversation(), model.conversation(reuse=False)
        )  # fmt: skip
        before: list[int] = []
        for number in range(turns):
            question = QUESTIONS[number % len(QUESTIONS)]
            answers = [answer(conversation, question, limit) for conversation in conversations]
            kept = conversations[0]
            completions = [reply.completion for _, reply in answers]
            if len({(done.tokens, done.logprobs) for done in completions}) > 1:
                raise SystemExit(f"turn {number + 1}: the answers differ")
            prompt = model.chat_template.prompt(kept.messages[:-1]).ids
            reused = min(shared(before, prompt), len(prompt) - 1)
            if number == len(results):
                results.append(Turn(new=len(prompt) - reused, reused=reused))
            turn = results[number]
            turn.kept.append(answers[0][0])
            turn.served.append(answers[1][0])
            turn.anew.append(answers[2][0])
            turn.cost.append(cost(model, prompt, reused))
            before = prompt
        service.close()
    return results


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--turns", type=int, default=len(QUESTIONS))
    parser.add_argument("-n", "--max-new-tokens", type=int, default=48)
    add_timing(parser, rounds=3)
    args = parser.parse_args()
    model = ortolan.load(args.bundle, ortolan.Decoder, threads=args.threads)
    turns = measure(model, turns=args.turns, limit=args.max_new_tokens, rounds=args.rounds)
    print("| turn | reused | new | cost of new, ms | first token, ms | ratio ", end="")
    print("| served, ms | ratio | anew, ms |\n" + "| ---: " * 9 + "|")
    for number, turn in enumerate(turns, 1):
        price, kept, served, anew = map(min, (turn.cost, turn.kept, turn.served, turn.anew))
        print(
            f"| {number} | {turn.reused} | {turn.new} | {1e3 * price:.0f} | {1e3 * kept:.0f} "
            f"| {kept / price:.2f} | {1e3 * served:.0f} | {served / price:.2f} | {1e3 * anew:.0f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
