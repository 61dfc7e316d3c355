#!/usr/bin/env python3
"""Writes a long prompt of plain text with one fact hidden in it, and the question for that fact.

    haystack.py --words 5000 --depth 0.5 > prompt.txt

The text is made up from a seed: reports of a harbour town, no sentence of which mentions the fact.
"""
import argparse
import random

PLACES = ["the harbour", "the old market", "the north pier", "the mill", "the town hall", "the boatyard", "the lighthouse",
          "the railway bridge", "the school", "the fish auction", "the library", "the brewery", "the salt works", "the ferry landing"]
PEOPLE = ["the harbour master", "a young carpenter", "the baker's daughter", "two retired sailors", "the new doctor", "a surveyor",
          "the station clerk", "an English painter", "the schoolmaster", "the widow Jansen", "a travelling musician", "the council"]
DEEDS = ["repaired the roof of", "complained about the noise near", "planned a small garden behind", "painted the doors of",
         "counted the visitors at", "wrote a long letter about", "took photographs of", "measured the walls of",
         "opened a tea room beside", "argued for hours about", "cleared the snow in front of", "told stories about"]
TIMES = ["In early spring", "One rainy morning", "Late in the summer", "After the storm", "During the fair", "On a quiet Sunday",
         "Before the first frost", "When the fog lifted", "Towards the end of the year", "At low tide", "In the week of the regatta"]
ENDS = ["and nobody objected.", "which pleased almost everyone.", "although the weather was poor.", "and the work took nine days.",
        "and the newspaper gave it half a column.", "while the bells were ringing.", "as had been the custom for years.",
        "and the cost was shared by the neighbours.", "but the plan was soon forgotten.", "so the children had a holiday."]
SMALL = ["The tide was late that day.", "Bread had become a little cheaper.", "The wind came from the west.", "Nothing else was reported.",
         "It was talked about for weeks.", "The ferry ran every hour.", "Gulls sat on every chimney.", "The evenings were growing longer."]


def sentence(rng: random.Random) -> str:
    if rng.random() < 0.25:
        return rng.choice(SMALL)
    return f"{rng.choice(TIMES)} {rng.choice(PEOPLE)} {rng.choice(DEEDS)} {rng.choice(PLACES)}, {rng.choice(ENDS)}"


def haystack(words: int, depth: float, seed: int) -> str:
    rng = random.Random(seed)
    number = rng.randint(1_000_000, 9_999_999)
    fact = f"One of the special magic numbers for Oslo is: {number}."
    paragraphs, count, placed = [], 0, False
    while count < words:
        lines = []
        for _ in range(rng.randint(5, 9)):
            if not placed and count >= depth * words:
                lines.append(fact)
                placed = True
            lines.append(sentence(rng))
            count += len(lines[-1].split())
        paragraphs.append(" ".join(lines))
    if not placed:
        paragraphs[-1] += " " + fact
    return ("Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about the "
            "numbers afterwards.\n\n" + "\n".join(paragraphs) +
            "\n\nWhat is the special magic number for Oslo mentioned in the provided text? "
            "Give the number first, then say in a few sentences what the text is about.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="A long prompt with one fact hidden in it.")
    parser.add_argument("--words", type=int, default=6000, help="length of the text (default 6000, about 7,000 tokens)")
    parser.add_argument("--depth", type=float, default=0.5, help="where the fact stands, 0 to 1 (default 0.5)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.words < 1 or not 0 <= arguments.depth <= 1:
        parser.error("--words must be at least 1 and --depth in 0..1")
    print(haystack(arguments.words, arguments.depth, arguments.seed), end="")


if __name__ == "__main__":
    main()
