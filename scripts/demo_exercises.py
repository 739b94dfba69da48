"""Exercises of the shipped model's corpus: sums, counting, the calendar, lists, letters, and repeating word by word."""

from collections.abc import Callable
from random import Random

from attrs import frozen

from scripts import demo_words as words


@frozen
class Turn:
    """One question, the thoughts that lead to its answer (shortest first), and the answer."""

    ask: str
    thoughts: tuple[str, ...]
    answer: str


Skill = Callable[[Random], list[Turn]]


def capital_first(text: str) -> str:
    return text[0].upper() + text[1:]


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _join(items: list[str], rng: Random) -> str:
    """Write a list in one of the usual forms."""
    form = rng.randrange(3)
    if form == 0 and len(items) > 1:
        return f"{', '.join(items[:-1])} and {items[-1]}."
    if form == 1:
        return "\n".join(f"- {item}" for item in items)
    return "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1))


def arithmetic(rng: Random) -> list[Turn]:
    sign = rng.choice("++++--**")
    if sign == "*":
        left, right = rng.randint(0, 10), rng.randint(0, 10)
        result, spoken, written = left * right, "times", rng.choice(["*", "x"])
    elif sign == "+":
        top = 20 if rng.random() < 0.7 else 60
        left, right = rng.randint(0, top), rng.randint(0, top if rng.random() < 0.5 else 10)
        result, spoken, written = left + right, "plus", "+"
    else:
        left = rng.randint(0, 20 if rng.random() < 0.8 else 60)
        right = rng.randint(0, min(left, 20))
        result, spoken, written = left - right, "minus", "-"
    asks = (
        f"What is {left} {written} {right}?",
        f"What is {left} {spoken} {right}?",
        f"{left} {written} {right} =",
        f"{left}{written}{right}",
        f"Compute {left} {written} {right}.",
        f"How much is {left} {spoken} {right}?",
        f"Calculate {left} {written} {right}, please.",
    )
    line = f"{left} {written} {right} = {result}"
    answer = rng.choice([f"{line}.", f"{left} {spoken} {right} is {result}.", f"The answer is {result}."])
    return [Turn(rng.choice(asks), (f"{line}.",), answer)]


def story_sum(rng: Random) -> list[Turn]:
    name, things = rng.choice(words.NAMES), rng.choice(["apples", "books", "coins", "stones", "cups", "hats", "eggs"])
    left, right = rng.randint(2, 12), rng.randint(1, 9)
    if rng.random() < 0.5 or right > left:
        ask = f"{name} has {left} {things} and gets {right} more. How many {things} does {name} have now?"
        line, result = f"{left} + {right} = {left + right}.", left + right
    else:
        ask = f"{name} has {left} {things} and gives away {right}. How many {things} are left?"
        line, result = f"{left} - {right} = {left - right}.", left - right
    return [Turn(ask, (line, f"So the answer is {result}."), f"{name} has {result} {things}.")]


def compare(rng: Random) -> list[Turn]:
    left, right = rng.sample(range(100), 2)
    high, low = max(left, right), min(left, right)
    if rng.random() < 0.5:
        ask = rng.choice([f"Which is bigger, {left} or {right}?", f"Which number is larger: {left} or {right}?"])
        return [Turn(ask, (f"{high} is bigger than {low}.",), f"{high} is bigger than {low}.")]
    ask = rng.choice([f"Which is smaller, {left} or {right}?", f"Which number is smaller: {left} or {right}?"])
    return [Turn(ask, (f"{low} is smaller than {high}.",), f"{low} is smaller than {high}.")]


def counting(rng: Random) -> list[Turn]:
    form = rng.randrange(4)
    start, length = rng.choice([1, 1, 1, rng.randint(2, 20)]), rng.randint(3, 12)
    end = start + length - 1
    if form == 0:
        ask = rng.choice([f"Count from {start} to {end}.", f"Please count from {start} to {end}."])
        return [
            Turn(ask, (f"I start at {start} and stop at {end}.",), ", ".join(map(str, range(start, end + 1))) + ".")
        ]
    if form == 1:
        text = ", ".join(map(str, range(end, start - 1, -1)))
        return [Turn(f"Count down from {end} to {start}.", (f"I start at {end} and go down to {start}.",), text + ".")]
    if form == 2:
        top = rng.randint(3, 10)
        return [
            Turn(
                f"Count to {words.NUMBERS[top]} in words.",
                ("I use words.",),
                ", ".join(words.NUMBERS[1 : top + 1]) + ".",
            )
        ]
    number = rng.randint(0, 99)
    if rng.random() < 0.5:
        return [Turn(f"What number comes after {number}?", (f"{number} + 1 = {number + 1}.",), f"{number + 1}")]
    return [Turn(f"What number comes before {number + 1}?", (f"{number + 1} - 1 = {number}.",), f"{number}")]


def calendar(rng: Random) -> list[Turn]:
    names, kind = (words.DAYS, "day") if rng.random() < 0.6 else (words.MONTHS, "month")
    index = rng.randrange(len(names))
    this, after, before = names[index], names[(index + 1) % len(names)], names[index - 1]
    form = rng.randrange(4)
    if form == 0:
        return [
            Turn(f"What {kind} comes after {this}?", (f"After {this} comes {after}.",), f"{after} comes after {this}.")
        ]
    if form == 1:
        ask = f"What {kind} comes before {this}?"
        return [Turn(ask, (f"Before {this} comes {before}.",), f"{before} comes before {this}.")]
    if form == 2 and kind == "day":
        return [
            Turn(f"Today is {this}. What day is tomorrow?", (f"After {this} comes {after}.",), f"Tomorrow is {after}.")
        ]
    whole = "week" if kind == "day" else "year"
    return [Turn(f"List the {kind}s of the {whole}.", (f"I list all {len(names)} {kind}s.",), ", ".join(names) + ".")]


def listing(rng: Random) -> list[Turn]:
    group, members = rng.choice(list(words.GROUPS.items()))
    count = rng.randint(2, min(6, len(members)))
    shown = words.NUMBERS[count] if rng.random() < 0.6 else str(count)
    ask = rng.choice(
        [f"List {shown} {group}.", f"Name {shown} {group}.", f"Give me {shown} {group}.", f"Tell me {shown} {group}."]
    )
    return [Turn(ask, (f"I need {words.NUMBERS[count]} {group}.",), _join(rng.sample(members, count), rng))]


def category(rng: Random) -> list[Turn]:
    group, members = rng.choice(list(words.GROUPS.items()))
    if rng.random() < 0.5:
        member = rng.choice(members)
        single = {"cities": "city"}.get(group, group[:-1])
        return [
            Turn(
                f"What kind of thing is {member}?",
                (f"{capital_first(member)} is one of the {group}.",),
                f"{capital_first(member)} is {article(single)}.",
            )
        ]
    ask = rng.choice([f"Name one of the {group}.", f"Give me an example of {group}."])
    return [Turn(ask, (f"I pick one of the {group}.",), f"{capital_first(rng.choice(members))}.")]


def spelling(rng: Random) -> list[Turn]:
    word = rng.choice(words.WORDS)
    form = rng.randrange(4)
    if form == 0:
        ask = rng.choice([f"How many letters are in {word}?", f'How many letters does "{word}" have?'])
        return [Turn(ask, (f"{'-'.join(word)} has {len(word)} letters.",), f'"{word}" has {len(word)} letters.')]
    if form == 1:
        ask = f"What is the first letter of {word}?"
        return [Turn(ask, (f"{word} starts with {word[0]}.",), f"The first letter of {word} is {word[0]}.")]
    ask = rng.choice([f"Spell {word}.", f"How do you spell {word}?", f'Spell the word "{word}".'])
    return [Turn(ask, ("I write the letters one by one.",), "-".join(word))]


def echo(rng: Random) -> list[Turn]:
    if rng.random() < 0.3:
        text = " ".join(str(rng.randint(0, 999)) for _ in range(rng.randint(1, 6)))
    elif rng.random() < 0.3:
        text = f"{rng.choice(words.NAMES)} {rng.choice(['likes', 'sees', 'wants', 'has'])} {rng.choice(words.WORDS)}."
    else:
        text = " ".join(rng.sample(words.WORDS, rng.randint(1, 8)))
    ask, sep = rng.choice(
        [
            ("Repeat exactly", ": "),
            ("Say", ": "),
            ("Repeat after me", ": "),
            ("Repeat this", ": "),
            ("Write", ": "),
            ("Say", " "),
            ("Echo", " "),
            ("Repeat", " "),
            ("Please repeat", ": "),
        ]
    )
    quote = '"' if rng.random() < 0.2 else ""
    return [Turn(f"{ask}{sep}{quote}{text}{quote}", ("I repeat the text.",), text)]


def editing(rng: Random) -> list[Turn]:
    items = rng.sample(words.WORDS, rng.randint(2, 5))
    text = " ".join(items)
    form = rng.randrange(5)
    if form == 0:
        return [Turn(f"Write in capital letters: {text}", ("I use capital letters.",), text.upper())]
    if form == 1:
        return [
            Turn(f"Reverse the order of these words: {text}", ("I start from the last word.",), " ".join(items[::-1]))
        ]
    if form == 2:
        return [Turn(f"Sort these words: {text}", ("I sort by the first letter.",), " ".join(sorted(items)))]
    if form == 3:
        which, word = rng.choice([("first", items[0]), ("last", items[-1])])
        return [Turn(f"What is the {which} word of: {text}", (f"The {which} word is {word}.",), word)]
    joined = ", ".join(items)
    return [
        Turn(f"How many words are here: {joined}", (f"I count {len(items)} words.",), f"There are {len(items)} words.")
    ]
