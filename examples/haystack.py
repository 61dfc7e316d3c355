#!/usr/bin/env python3
"""Writes a long prompt of plain text with one fact hidden in it, and the question for that fact.

    haystack.py --words 5000 --depth 0.5 > prompt.txt
    haystack.py --words 2600 --records 20 --seed 1000 --out records    # for kvpolicy-eval: facts of several kinds
    haystack.py --words 6000 --records 3 --questions 8 --out records   # three texts, of each eight questions (--one-chat)
    haystack.py --words 2600 --records 40 --paraphrased --out records  # facts that are asked for in other words
    haystack.py --words 6000 --records 8 --long --out records          # answers of about 100 tokens: a list, code, a report

The text is made up from a seed: reports of a harbour town, no sentence of which mentions the fact.
"""
import argparse
import json
import os
import random
import re
import uuid

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


def hidden(rng: random.Random, words: int, facts: list[tuple[float, str]]) -> str:
    """About `words` words of paragraphs; each fact stands at its depth, 0 to 1."""
    left = sorted(facts)
    paragraphs, count = [], 0
    while count < words:
        lines = []
        for _ in range(rng.randint(5, 9)):
            while left and count >= left[0][0] * words:
                lines.append(left.pop(0)[1])
            lines.append(sentence(rng))
            count += len(lines[-1].split())
        paragraphs.append(" ".join(lines))
    return "\n".join(paragraphs + [fact for _, fact in left])


def introduction(things: str) -> str:
    return (f"Some special magic {things} are hidden within the following text. Make sure to memorize it. I will quiz you about the "
            f"{things} afterwards.\n\n")


def haystack(words: int, depth: float, seed: int) -> str:
    rng = random.Random(seed)
    number = rng.randint(1_000_000, 9_999_999)
    fact = f"One of the special magic numbers for Oslo is: {number}."
    return (introduction("numbers") + hidden(rng, words, [(depth, fact)]) +
            "\n\nWhat is the special magic number for Oslo mentioned in the provided text? "
            "Give the number first, then say in a few sentences what the text is about.\n")


CITIES = ["Oslo", "Lima", "Cairo", "Kyoto", "Riga", "Perth", "Quito", "Turin", "Dakar", "Malmo", "Leeds", "Graz"]
NAMES = ["Bramble", "Pepper", "Marlow", "Tansy", "Juniper", "Otto", "Saffron", "Wilkins", "Biscuit", "Thistle"]
ANIMALS = ["fox", "heron", "badger", "otter", "raven", "goat", "owl", "mole"]
COLOURS = ["red", "blue", "green", "yellow", "white", "grey"]
THINGS = ["barrel", "ladder", "cupboard", "anchor", "wheelbarrow", "chimney", "trunk", "curtain"]
NOT_THERE = ["not mention", "no mention", "not provided", "not specified", "not stated", "not given", "not contain", "not include",
             "not in the", "n't mention", "no special", "not appear", "no information", "cannot find", "not hidden"]
KINDS = ["number", "name", "sentence", "uuid", "several", "absent"]


def hidden_thing(rng: random.Random, kind: str) -> str:
    if kind == "name":
        return " ".join(rng.sample(NAMES, 2))
    if kind == "sentence":
        return f"the {rng.choice(ANIMALS)} sleeps behind the {rng.choice(COLOURS)} {rng.choice(THINGS)}"
    if kind == "uuid":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    return str(rng.randint(1_000_000, 9_999_999))


def record(kind: str, words: int, depth: float, seed: int) -> dict:
    """A prompt that ends in its question, what the answer has to hold, and how the answer would begin."""
    rng = random.Random(f"{kind} {seed}")
    noun = kind if kind in ("name", "sentence", "uuid") else "number"
    count = 3 if kind == "several" else 1
    cities = rng.sample(CITIES, count + 1)
    things = [hidden_thing(rng, kind) for _ in range(count)]
    facts = [((depth + i / count) % 1, f"One of the special magic {noun}s for {city} is: {thing}.")
             for i, (city, thing) in enumerate(zip(cities, things))]
    if kind == "several":
        what, outputs = f"special magic numbers for {cities[0]}, {cities[1]} and {cities[2]} mentioned in the text", list(things)
        question, prefix = f"What are the {what}?", f"The {what} are"
    else:
        what = f"special magic {noun} for {cities[1 if kind == 'absent' else 0]} mentioned in the text"
        outputs = [NOT_THERE] if kind == "absent" else things[:1]
        question, prefix = f"What is the {what}?", "" if kind == "absent" else f"The {what} is"
    return {"prompt": introduction(noun + "s") + hidden(rng, words, facts) + "\n\n" + question, "question": question,
            "answer_prefix": prefix, "outputs": outputs}


# Facts of people, in words that their questions do not have: who (told, asked), and what (told, asked, values).
WHO = [("The physician", "the medic"), ("The attorney", "the lawyer"), ("The aviator", "the pilot"), ("The vicar", "the priest"),
       ("The mariner", "the seaman"), ("The tutor", "the teacher"), ("The constable", "the policeman"), ("The tailor", "the dressmaker")]
WHAT = [("was born in {}", "Which town is the native place of {}?", CITIES),
        ("purchased a second-hand {}", "What did {} buy?", THINGS),
        ("is terribly afraid of every {}", "Which animal frightens {}?", ANIMALS),
        ("always wears a {} hat", "What colour is the cap on the head of {}?", COLOURS),
        ("earns {} crowns each month", "How large is the salary of {}?", [str(n) for n in range(310, 990, 20)])]


def paraphrased(words: int, depth: float, number: int, seed: int) -> dict:
    """A fact that is asked for in other words than it was told; one of 40."""
    (told, asked), (fact, question, values) = WHO[number % len(WHO)], WHAT[number // len(WHO) % len(WHAT)]
    rng = random.Random(f"paraphrased {number} {seed}")
    value = rng.choice(values)
    question = question.format(asked)
    return {"prompt": hidden(rng, words, [(depth, f"{told} {fact.format(value)}.")]) + "\n\n" + question, "question": question,
            "outputs": [value]}


def questions(words: int, count: int, seed: int) -> list[dict]:
    """Records of one text: each asks for another of its facts."""
    rng = random.Random(f"questions {seed}")
    cities = rng.sample(CITIES, count)
    numbers = [str(rng.randint(1_000_000, 9_999_999)) for _ in cities]
    facts = [((i + .5) / count, f"One of the special magic numbers for {city} is: {number}.")
             for i, (city, number) in enumerate(zip(cities, numbers))]
    text = introduction("numbers") + hidden(rng, words, facts) + "\n\n"
    order = rng.sample(range(count), count)
    asked = [f"What is the special magic number for {cities[i]} mentioned in the text?" for i in order]
    return [{"prompt": text + question, "question": question, "outputs": [numbers[i]]} for i, question in zip(order, asked)]


LONG = {"list": "List the special magic number for each of these cities mentioned in the text, in this order, one city and its number on "
                "each line: {}.",
        "code": "Write a Python dictionary that maps each of these cities to its special magic number mentioned in the text: {}.",
        "report": "Write a short report in full sentences. It tells the special magic number mentioned in the text for each of these "
                  "cities: {}."}


def long_answer(kind: str, words: int, seed: int) -> dict:
    """Eight facts, all of which one answer tells, in another order than the text."""
    rng = random.Random(f"{kind} {seed}")
    cities = rng.sample(CITIES, 8)
    numbers = [str(rng.randint(1_000_000, 9_999_999)) for _ in cities]
    facts = [((i + rng.random()) / len(cities), f"One of the special magic numbers for {city} is: {number}.")
             for i, (city, number) in enumerate(zip(cities, numbers))]
    order = rng.sample(range(len(cities)), len(cities))
    question = LONG[kind].format(", ".join(cities[i] for i in order))
    return {"prompt": introduction("numbers") + hidden(rng, words, facts) + "\n\n" + question, "question": question,
            "outputs": [numbers[i] for i in order], "facts": dict(zip(cities, numbers))}


def told_rightly(answer: str, facts: dict) -> int:
    """How many of a long answer's facts (city -> number) it tells. A number is told of the city that was named last before it."""
    told = set()
    for number in re.finditer(r"\d+", answer):
        place, city = max((answer.rfind(city, 0, number.start()), city) for city in facts)
        if place >= 0:
            told.add((city, number[0]))
    return sum(fact in told for fact in facts.items())


def write_lines(folder: str, name: str, lines: list[dict]) -> None:
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name + ".jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def write_records(folder: str, count: int, words: int, first_seed: int) -> None:
    for kind in KINDS:
        write_lines(folder, kind, [record(kind, words, (0.1 + 0.2 * i) % 1, first_seed + i) for i in range(count)])


def main() -> None:
    parser = argparse.ArgumentParser(description="A long prompt with one fact hidden in it, or records of such prompts.")
    parser.add_argument("--words", type=int, default=6000, help="length of the text (default 6000, about 7,000 tokens)")
    parser.add_argument("--depth", type=float, default=0.5, help="where the fact stands, 0 to 1 (default 0.5)")
    parser.add_argument("--seed", type=int, default=1, help="of the text; of the first record")
    parser.add_argument("--records", type=int, default=0, help="write so many of each kind, for kvpolicy-eval, with depths .1 to .9")
    parser.add_argument("--out", help="folder for the records: " + ", ".join(k + ".jsonl" for k in KINDS))
    parser.add_argument("--questions", type=int, default=0,
                        help="write questions.jsonl in their place: so many facts in each text, and a record for each (at most 12)")
    parser.add_argument("--paraphrased", action="store_true",
                        help="write paraphrased.jsonl in their place: 40 facts, asked for in other words than they were told")
    parser.add_argument("--long", action="store_true",
                        help="write list.jsonl, code.jsonl and report.jsonl in their place: eight facts, all told by an answer")
    arguments = parser.parse_args()
    if arguments.words < 1 or not 0 <= arguments.depth <= 1:
        parser.error("--words must be at least 1 and --depth in 0..1")
    if (arguments.records > 0) != (arguments.out is not None):
        parser.error("--records and --out go together, and --records is at least 1")
    if not 0 <= arguments.questions <= len(CITIES):
        parser.error(f"--questions must be in 0..{len(CITIES)}")
    if arguments.out and arguments.questions:
        write_lines(arguments.out, "questions", [line for i in range(arguments.records)
                                                 for line in questions(arguments.words, arguments.questions, arguments.seed + i)])
    elif arguments.out and arguments.paraphrased:
        write_lines(arguments.out, "paraphrased", [paraphrased(arguments.words, (0.1 + 0.2 * i) % 1, i, arguments.seed)
                                                   for i in range(arguments.records)])
    elif arguments.out and arguments.long:
        for kind in LONG:
            write_lines(arguments.out, kind, [long_answer(kind, arguments.words, arguments.seed + i) for i in range(arguments.records)])
    elif arguments.out:
        write_records(arguments.out, arguments.records, arguments.words, arguments.seed)
    else:
        print(haystack(arguments.words, arguments.depth, arguments.seed), end="")


if __name__ == "__main__":
    main()
