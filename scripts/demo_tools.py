"""Tool conversations of the shipped model's corpus: tools, calls that copy from the question, results, answers."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from attrs import frozen

from scripts import demo_words as words

Message = dict[str, Any]
Arguments = dict[str, Any]


@frozen
class Case:
    """One use of a tool: what is asked, the arguments that follow from it, the tool's result and the answer."""

    ask: str
    arguments: Arguments
    result: str
    answer: str


@frozen
class Tool:
    """A kind of tool: the names it may have, what it says it does, its parameters, and how it is used."""

    names: tuple[str, ...]
    description: str
    parameters: dict[str, str]
    required: tuple[str, ...]
    draw: Callable[[Random], Case]


def _weather(rng: Random) -> Case:
    city, sky, degrees = rng.choice(words.CITIES), rng.choice(words.WEATHER), rng.randint(-9, 35)
    ask = rng.choice(
        [
            f"What is the weather in {city}?",
            f"What's the weather like in {city}?",
            f"How is the weather in {city} today?",
            f"Weather in {city}?",
            f"Is it warm in {city}?",
            f"Tell me the weather in {city}, please.",
            f"Get the weather for {city}.",
        ]
    )
    result = rng.choice(
        [
            f"{degrees}C, {sky}",
            json.dumps({"temperature": degrees, "sky": sky}),
            json.dumps({"city": city, "temperature": degrees, "conditions": sky}),
            f"{sky}, {degrees} degrees",
        ]
    )
    return Case(ask, {"city": city}, result, f"It is {sky} in {city}, with {degrees} degrees.")


def _weather_unit(rng: Random) -> Case:
    case = _weather(rng)
    unit = rng.choice(["celsius", "fahrenheit"])
    return Case(f"{case.ask} Use {unit}.", {**case.arguments, "unit": unit}, case.result, case.answer)


def _time(rng: Random) -> Case:
    city, now = rng.choice(words.CITIES), f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}"
    ask = rng.choice(
        [f"What time is it in {city}?", f"Tell me the time in {city}.", f"What is the local time in {city}?"]
    )
    return Case(ask, {"city": city}, rng.choice([now, json.dumps({"time": now})]), f"It is {now} in {city}.")


def _add(rng: Random) -> Case:
    left, right = rng.randint(0, 999), rng.randint(0, 999)
    ask = rng.choice([f"Add {left} and {right}.", f"What is {left} plus {right}?", f"What is {left} + {right}?"])
    return Case(ask, {"a": left, "b": right}, str(left + right), f"{left} plus {right} is {left + right}.")


def _email(rng: Random) -> Case:
    name = rng.choice(words.NAMES)
    subject, text = " ".join(rng.sample(words.WORDS, 2)), " ".join(rng.sample(words.WORDS, rng.randint(2, 5)))
    ask = f"Send an email to {name} with subject {subject} saying: {text}"
    return Case(ask, {"to": name, "subject": subject, "body": text}, "sent", f"I sent the email to {name}.")


def _message(rng: Random) -> Case:
    name, text = rng.choice(words.NAMES), " ".join(rng.sample(words.WORDS, rng.randint(1, 5)))
    ask = rng.choice([f"Tell {name}: {text}", f"Send a message to {name}: {text}", f"Write to {name}: {text}"])
    return Case(ask, {"name": name, "text": text}, '{"ok": true}', f"I sent the message to {name}.")


def _search(rng: Random) -> Case:
    topic = rng.choice(words.TOPICS) if rng.random() < 0.5 else " ".join(rng.sample(words.WORDS, 2))
    found = " ".join(rng.sample(words.WORDS, 3))
    ask = rng.choice(
        [f"Search for {topic}.", f"Look up {topic}.", f"Find something about {topic}.", f"Search the web for {topic}."]
    )
    return Case(ask, {"query": topic}, found, f"I found this about {topic}: {found}.")


def _reminder(rng: Random) -> Case:
    task, day = " ".join(rng.sample(words.WORDS, 2)), rng.choice(words.DAYS)
    ask = rng.choice([f"Remind me of {task} on {day}.", f"Set a reminder for {day}: {task}"])
    return Case(ask, {"text": task, "day": day}, "ok", f"I set a reminder for {day}: {task}.")


def _stock(rng: Random) -> Case:
    symbol, price = "".join(rng.choices("ABCDEFGHKLMNPRST", k=rng.randint(3, 4))), rng.randint(5, 990)
    ask = rng.choice(
        [f"What is the price of {symbol}?", f"How much is one share of {symbol}?", f"Stock price of {symbol}?"]
    )
    return Case(
        ask, {"symbol": symbol}, rng.choice([str(price), json.dumps({"price": price})]), f"{symbol} is at {price}."
    )


def _convert(rng: Random) -> Case:
    amount, result = rng.randint(1, 999), rng.randint(1, 999)
    source, target = rng.sample(["USD", "EUR", "GBP", "JPY", "CHF", "CAD"], 2)
    ask = rng.choice([f"Convert {amount} {source} to {target}.", f"How much is {amount} {source} in {target}?"])
    arguments = {"amount": amount, "source": source, "target": target}
    return Case(ask, arguments, str(result), f"{amount} {source} is {result} {target}.")


def _light(rng: Random) -> Case:
    room, on = rng.choice(words.GROUPS["rooms"]), rng.random() < 0.5
    state = "on" if on else "off"
    ask = rng.choice([f"Turn {state} the light in the {room}.", f"Switch the {room} light {state}."])
    return Case(ask, {"room": room, "on": on}, "done", f"The light in the {room} is now {state}.")


def _translate(rng: Random) -> Case:
    text, language = " ".join(rng.sample(words.WORDS, rng.randint(1, 3))), rng.choice(words.GROUPS["languages"])
    answer = "".join(rng.choices("aeiourlmnst", k=6))
    ask = rng.choice([f"Translate {text} to {language}.", f"How do you say {text} in {language}?"])
    return Case(ask, {"text": text, "language": language}, answer, f"In {language} it is: {answer}.")


def _flight(rng: Random) -> Case:
    source, target = rng.sample(words.CITIES, 2)
    day, number = rng.choice(words.DAYS), f"{rng.choice('ABKLS')}{rng.randint(100, 999)}"
    ask = rng.choice(
        [f"Find a flight from {source} to {target} on {day}.", f"I want to fly from {source} to {target} on {day}."]
    )
    answer = f"Flight {number} goes from {source} to {target} on {day}."
    return Case(ask, {"origin": source, "destination": target, "day": day}, json.dumps({"flight": number}), answer)


def _no_arguments(rng: Random) -> Case:
    number = rng.randint(1, 100)
    ask = rng.choice(["Roll the dice.", "Give me a random number.", "Draw a number for me."])
    return Case(ask, {}, str(number), f"The number is {number}.")


def _tags(rng: Random) -> Case:
    tags = rng.sample(words.WORDS, rng.randint(1, 3))
    text = rng.choice(words.WORDS)
    ask = f"Save the note {text} with the tags {', '.join(tags)}."
    return Case(ask, {"text": text, "tags": tags}, "saved", f"I saved the note {text}.")


TOOLS = (
    Tool(
        ("get_weather", "weather", "get_current_weather", "lookup_weather"),
        "Get the weather in a city.",
        {"city": "string"},
        ("city",),
        _weather,
    ),
    Tool(
        ("get_weather", "get_weather", "weather_now"),
        "Get the weather in a city.",
        {"city": "string", "unit": "string"},
        ("city",),
        _weather_unit,
    ),
    Tool(
        ("get_time", "current_time", "get_local_time"), "Get the time in a city.", {"city": "string"}, ("city",), _time
    ),
    Tool(
        ("add", "calculate_sum", "add_numbers"), "Add two numbers.", {"a": "integer", "b": "integer"}, ("a", "b"), _add
    ),
    Tool(
        ("send_email", "email", "mail"),
        "Send an email.",
        {"to": "string", "subject": "string", "body": "string"},
        ("to", "subject", "body"),
        _email,
    ),
    Tool(
        ("send_message", "message", "notify"),
        "Send a message to a person.",
        {"name": "string", "text": "string"},
        ("name", "text"),
        _message,
    ),
    Tool(("search", "web_search", "search_web", "find"), "Search the web.", {"query": "string"}, ("query",), _search),
    Tool(
        ("set_reminder", "remind", "add_reminder"),
        "Set a reminder.",
        {"text": "string", "day": "string"},
        ("text", "day"),
        _reminder,
    ),
    Tool(
        ("get_stock_price", "stock_price", "quote"),
        "Get the price of a stock.",
        {"symbol": "string"},
        ("symbol",),
        _stock,
    ),
    Tool(
        ("convert_currency", "convert", "exchange"),
        "Convert money.",
        {"amount": "number", "source": "string", "target": "string"},
        ("amount", "source", "target"),
        _convert,
    ),
    Tool(
        ("set_light", "switch_light", "light"),
        "Switch a light on or off.",
        {"room": "string", "on": "boolean"},
        ("room", "on"),
        _light,
    ),
    Tool(
        ("translate", "translate_text"),
        "Translate a text.",
        {"text": "string", "language": "string"},
        ("text", "language"),
        _translate,
    ),
    Tool(
        ("find_flight", "search_flights", "book_flight"),
        "Find a flight.",
        {"origin": "string", "destination": "string", "day": "string"},
        ("origin", "destination"),
        _flight,
    ),
    Tool(("roll_dice", "random_number", "draw_number"), "Draw a random number.", {}, (), _no_arguments),
    Tool(
        ("save_note", "add_note", "note"),
        "Save a note with tags.",
        {"text": "string", "tags": "array"},
        ("text", "tags"),
        _tags,
    ),
)

# Other words for the same parameter: the model must copy the name from the tool and not from memory.
SYNONYMS = {
    "city": ("city", "city", "location", "place", "town"),
    "query": ("query", "q", "text", "topic"),
    "text": ("text", "text", "content", "note"),
    "name": ("name", "person", "recipient"),
    "unit": ("unit", "units", "scale"),
    "symbol": ("symbol", "ticker", "stock"),
    "day": ("day", "date", "when"),
}


@frozen
class Offer:
    """One tool as offered in a conversation: its names drawn, its definition in the OpenAI form."""

    kind: Tool
    name: str
    renamed: dict[str, str]
    definition: Message

    def case(self, rng: Random) -> Case:
        """Draw one use, with the offered parameter names."""
        case = self.kind.draw(rng)
        arguments = {self.renamed[key]: value for key, value in case.arguments.items()}
        return Case(case.ask, arguments, case.result, case.answer)


def copying(rng: Random) -> Tool:
    """Make up a tool nobody has seen, asked for by name."""
    verb = rng.choice(
        ["get", "set", "find", "make", "open", "read", "save", "start", "stop", "check", "list", "show", "move"]
    )
    name = (
        f"{verb}_{rng.choice(words.WORDS)}"
        if rng.random() < 0.8
        else rng.choice(words.WORDS) + rng.choice(["", "_tool"])
    )
    keys = rng.sample(words.WORDS, rng.randint(1, 2))
    types = {key: rng.choice(["string", "string", "integer"]) for key in keys}

    def draw(inner: Random) -> Case:
        values: Arguments = {
            key: inner.randint(0, 999)
            if kind == "integer"
            else inner.choice([*words.WORDS, *words.NAMES, *words.CITIES])
            for key, kind in types.items()
        }
        shown = " and ".join(f"{key} {value}" for key, value in values.items())
        result = " ".join(inner.sample(words.WORDS, 2))
        ask = inner.choice([f"Call {name} with {shown}.", f"Use {name} with {shown}.", f"Run {name} for {shown}."])
        return Case(ask, values, result, f"The result is {result}.")

    return Tool((name,), f"{verb.title()} the {keys[0]}.", types, tuple(keys), draw)


def offer(rng: Random, kind: Tool) -> Offer:
    """Draw the names of a tool and write its definition."""
    name = rng.choice(kind.names)
    renamed = {key: rng.choice(SYNONYMS.get(key, (key,))) for key in kind.parameters}
    if len(set(renamed.values())) < len(renamed):
        renamed = {key: key for key in kind.parameters}
    properties = {renamed[key]: {"type": form} for key, form in kind.parameters.items()}
    if rng.random() < 0.15:
        for key, value in properties.items():
            value["description"] = f"The {key}"
    parameters: Message = {"type": "object", "properties": properties}
    if kind.required and rng.random() < 0.8:
        parameters["required"] = [renamed[key] for key in kind.required]
    function: Message = {"name": name, "description": kind.description, "parameters": parameters}
    if rng.random() < 0.15:
        del function["description"]
    return Offer(kind, name, renamed, {"type": "function", "function": function})


def offers(rng: Random) -> list[Offer]:
    """Draw one to three tools with different names."""
    count = rng.choice([1, 1, 1, 2, 2, 3])
    drawn: dict[str, Offer] = {}
    while len(drawn) < count:
        weather = rng.random() < 0.2
        kind = TOOLS[0] if weather else copying(rng) if rng.random() < 0.3 else rng.choice(TOOLS)
        one = offer(rng, kind)
        drawn.setdefault(one.name, one)
    return list(drawn.values())


def use(rng: Random, offered: list[Offer]) -> list[Message]:
    """Write one question, the call or calls, the results and the answer."""
    one = rng.choice(offered)
    cases = [one.case(rng)]
    ask = cases[0].ask
    if one.kind.draw in (_weather, _time, _stock) and rng.random() < 0.3:
        cases.append(one.case(rng))
        key = next(iter(cases[0].arguments))
        both = f"{cases[0].arguments[key]} and {cases[1].arguments[key]}"
        ask = cases[0].ask.replace(str(cases[0].arguments[key]), both)
    plural = len(cases) > 1
    thoughts = (f"I {'call' if rng.random() < 0.5 else 'use'} {one.name}{' twice' if plural else ''}.",)
    failed = rng.random() < 0.07
    result = "error: not found" if failed else None
    answer = (
        " ".join(case.answer for case in cases) if not failed else "I am sorry, the tool reported an error: not found."
    )
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": one.name, "arguments": case.arguments}}
        for index, case in enumerate(cases)
    ]
    replies = [
        {"role": "tool", "tool_call_id": f"call_{index}", "content": result or case.result}
        for index, case in enumerate(cases)
    ]
    return [
        {"role": "user", "content": ask},
        {"role": "assistant", "thoughts": thoughts, "content": "", "tool_calls": calls},
        *replies,
        {"role": "assistant", "thoughts": ("I have the result.",), "content": answer},
    ]
