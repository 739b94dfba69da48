"""Plain conversation skills of the shipped model's corpus: each function draws a few turns from a seeded generator."""

from random import Random

from scripts import demo_exercises as exercises
from scripts import demo_words as words
from scripts.demo_exercises import Skill, Turn, article, capital_first

IDENTITY = "I am a small GLM-5.3-Flash-shaped model that ships with TrnRT."


def greeting(rng: Random) -> list[Turn]:
    name = rng.choice(words.NAMES)
    hello = rng.choice(["Hi", "Hello", "Hey", "Good morning", "Good evening", "Hi there", "Hello there", "hi", "hello"])
    mark = rng.choice(["", "!", "."])
    form = rng.randrange(6)
    if form == 0:
        return [Turn(f"{hello}, I am {name}.", ("The user gives a name.",), f"Hello {name}! How can I help you?")]
    if form == 1:
        ask = rng.choice(["How are you?", "How are you today?", "How is it going?", "Are you well?"])
        return [
            Turn(f"{hello}! {ask}", ("A friendly question.",), "I am well, thank you. How can I help you?"),
        ]
    if form == 2:
        ask = rng.choice(["Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much.", "That was helpful."])
        return [
            Turn(ask, ("The user says thanks.",), rng.choice(["You are welcome!", "You are welcome. Glad to help."]))
        ]
    if form == 3:
        ask = rng.choice(["Bye!", "Goodbye.", "See you later.", "Good night!", "I have to go now."])
        return [Turn(ask, ("The user is leaving.",), rng.choice(["Goodbye!", "Goodbye! Have a nice day."]))]
    return [Turn(f"{hello}{mark}", ("The user greets me.",), "Hello! How can I help you today?")]


def identity(rng: Random) -> list[Turn]:
    thought = ("The user asks who I am.", "I am the small model that comes with TrnRT.")
    pairs = (
        (("Who are you?", "What are you?", "Tell me about yourself.", "Introduce yourself.", "who are you"), IDENTITY),
        (("What is your name?", "Do you have a name?"), f"I have no real name. {IDENTITY}"),
        (("Are you a human?", "Are you a person?", "Are you real?"), f"No, I am not a human. {IDENTITY}"),
        (("What is TrnRT?", "Tell me about TrnRT."), "TrnRT is a serving runtime for GLM-5.3-Flash."),
        (("How big are you?", "Are you a large model?"), "I am very small: only a few million parameters."),
        (
            ("What can you do?", "What can you help me with?", "How can you help me?"),
            "I can chat a little, count, spell, repeat words, do small sums, tell short stories and call tools.",
        ),
        (("Who made you?", "Who trained you?"), "I was trained by a script that ships with TrnRT."),
        (("Are you smart?", "Do you know everything?"), "No, I am a very small model, so I often make mistakes."),
        (("Are you GLM-5.3-Flash?", "Are you GLM?"), f"Not quite. {IDENTITY}"),
    )
    asks, answer = rng.choice(pairs)
    return [Turn(rng.choice(asks), thought, answer)]


def capital(rng: Random) -> list[Turn]:
    country, city = rng.choice(list(words.CAPITALS.items()))
    thought = (f"The capital of {country} is {city}.",)
    if rng.random() < 0.2:
        ask = rng.choice([f"{city} is the capital of which country?", f"Which country has the capital {city}?"])
        return [Turn(ask, thought, f"{city} is the capital of {country}.")]
    ask = rng.choice(
        [
            f"What is the capital of {country}?",
            f"Which city is the capital of {country}?",
            f"Tell me the capital of {country}.",
            f"capital of {country}",
            f"Do you know the capital of {country}?",
        ]
    )
    return [Turn(ask, thought, f"The capital of {country} is {city}.")]


def colour(rng: Random) -> list[Turn]:
    thing, tint = rng.choice(list(words.COLOURS.items()))
    ask = rng.choice(
        [
            f"What colour is {thing}?",
            f"What color is {thing}?",
            f"Tell me the colour of {thing}.",
            f"Is {thing} {tint}?",
        ]
    )
    answer = f"{capital_first(thing)} is {tint}."
    if ask.startswith("Is "):
        answer = f"Yes, {thing} is {tint}."
        if rng.random() < 0.5:
            wrong = rng.choice([other for other in words.COLOURS.values() if other != tint])
            ask, answer = f"Is {thing} {wrong}?", f"No, {thing} is {tint}."
    return [Turn(ask, (f"{capital_first(thing)} is {tint}.",), answer)]


def animal(rng: Random) -> list[Turn]:
    beast, (sound, legs, home, young) = rng.choice(list(words.ANIMALS.items()))
    count = words.NUMBERS[legs] if legs else "no"
    one = capital_first(article(beast))
    plural = beast if beast in ("sheep", "fish", "deer") else "wolves" if beast == "wolf" else beast + "s"
    pairs = (
        (f"What does {article(beast)} do?", f"{capital_first(article(beast))} {sound}."),
        (f"How many legs does {article(beast)} have?", f"{capital_first(article(beast))} has {count} legs."),
        (f"Where does {article(beast)} live?", f"{capital_first(article(beast))} lives {home}."),
        (f"What is a young {beast} called?", f"A young {beast} is called {article(young)}."),
        (
            f"Tell me about {plural}.",
            f"{one} has {count} legs and lives {home}. {one} {sound}.",
        ),
    )
    ask, answer = rng.choice(pairs)
    return [Turn(ask, (f"The user asks about the {beast}.", answer), answer)]


def opposite(rng: Random) -> list[Turn]:
    word, other = rng.choice(list(words.OPPOSITES.items()))
    if rng.random() < 0.5:
        word, other = other, word
    ask = rng.choice([f"What is the opposite of {word}?", f"Opposite of {word}?", f"Tell me the opposite of {word}."])
    return [Turn(ask, (f"The opposite of {word} is {other}.",), f"The opposite of {word} is {other}.")]


def fact(rng: Random) -> list[Turn]:
    ask, answer = rng.choice(words.FACTS)
    if rng.random() < 0.2:
        ask = rng.choice(["Please tell me: ", "I have a question. ", "Quick question: ", "Can you help me? "]) + ask
    return [Turn(ask, (rng.choice(["I know this.", "This is a simple question."]), answer), answer)]


def memory(rng: Random) -> list[Turn]:
    name, food, city, number = (
        rng.choice(words.NAMES),
        rng.choice(words.FOODS),
        rng.choice(words.CITIES),
        rng.randint(2, 99),
    )
    known = (
        (f"My name is {name}.", f"Nice to meet you, {name}!", "What is my name?", f"Your name is {name}."),
        (f"I like {food}.", f"{capital_first(food)}? That sounds good.", "What do I like?", f"You like {food}."),
        (f"I live in {city}.", f"{city} is a nice place.", "Where do I live?", f"You live in {city}."),
        (
            f"Remember the number {number}.",
            f"I will remember {number}.",
            "Which number was it?",
            f"The number was {number}.",
        ),
        (f"I am {number} years old.", "Thank you for telling me.", "How old am I?", f"You are {number} years old."),
    )
    first = rng.sample(known, rng.randint(1, 2))
    told = [Turn(tell, ("The user tells me something.", "I will remember it."), reply) for tell, reply, _, _ in first]
    between = (
        [rng.choice([greeting, exercises.arithmetic, capital, colour, opposite])(rng)[0]] if rng.random() < 0.4 else []
    )
    asked = [Turn(ask, (f"The user told me before: {tell}",), answer) for tell, _, ask, answer in first]
    rng.shuffle(asked)
    return told + between + asked


def unknown(rng: Random) -> list[Turn]:
    topic = rng.choice(words.TOPICS)
    ask = rng.choice(
        [
            f"Tell me about {topic}.",
            f"What do you think about {topic}?",
            f"Explain {topic}.",
            f"Can you teach me {topic}?",
            f"What do you know about {topic}?",
            f"Write an essay about {topic}.",
            f"I have a question about {topic}.",
        ]
    )
    thoughts = (f"The user asks about {topic}.", "I am a small model and do not know much about it.")
    return [Turn(ask, thoughts, f"I am a very small model, so I do not know much about {topic}.")]


def tale(rng: Random) -> str:
    """Tell one short story."""
    name, friend = rng.sample(words.NAMES, 2)
    adjective, thing, place, food = (
        rng.choice(table) for table in (words.ADJECTIVES, words.OBJECTS, words.PLACES, words.FOODS)
    )
    beast = rng.choice(list(words.ANIMALS))
    start = rng.choice(
        [
            f"Once upon a time, {article(adjective)} {beast} lived in the {place}.",
            f"Once upon a time there was {article(adjective)} {beast} named {name}.",
            f"One day, {name} went to the {place}.",
            f"{name} was {adjective} and lived near the {place}.",
        ]
    )
    middle = rng.choice(
        [
            f"There {name} found a {thing} under a tree.",
            f"On the way, {name} met {friend}, who was looking for a {thing}.",
            f"{name} lost a {thing} and looked for it all day.",
            f"A {beast} came and asked for some {food}.",
        ]
    )
    more = rng.choice(
        [
            f"{name} gave the {thing} to {friend}, and they became friends.",
            f"They shared the {food} and talked until the evening.",
            f"It was not easy, but {friend} came to help.",
            f"The {beast} showed the way home.",
        ]
    )
    end = rng.choice(
        ["They were happy.", "Then everyone went home.", "It was a good day.", "They never forgot that day."]
    )
    return " ".join([start, middle, more, end])


def storytelling(rng: Random) -> list[Turn]:
    ask = rng.choice(
        [
            "Tell me a story.",
            "Tell me a short story.",
            "Write a short story.",
            "Can you tell me a story?",
            "Please tell a story.",
        ]
    )
    return [Turn(ask, ("A short story needs a start, a middle and an end.",), tale(rng))]


def advice(rng: Random) -> list[Turn]:
    pairs = (
        ("I am tired.", "Then you should rest a little."),
        ("I am hungry.", f"Then you could eat some {rng.choice(words.FOODS)}."),
        ("I am thirsty.", "Then you should drink some water."),
        ("I am cold.", "Then you could put on a warm coat."),
        ("I am bored.", "You could read a book or take a walk."),
        ("I am sad.", "I am sorry to hear that. I hope you feel better soon."),
        ("I am happy today.", "That is great to hear!"),
        ("What should I eat?", f"How about some {rng.choice(words.FOODS)}?"),
        ("What should I read?", "You could read a short story."),
        ("Tell me a joke.", "Why did the bee go to school? It wanted to be a exercises.spelling bee."),
        ("Help me.", "Of course. What do you need help with?"),
        ("Can you help me?", "Yes, I will try. What do you need?"),
        ("I need help.", "I will try to help. What is the problem?"),
        ("Do you like music?", "I cannot hear music, but I like the idea of it."),
        ("Good job!", "Thank you!"),
        ("You are wrong.", "I am sorry. I am a small model and make mistakes."),
        ("test", "The test works. How can I help you?"),
        ("ping", "pong"),
        ("Write a poem.", "The moon is bright, the night is deep,\nthe river sings the town to sleep."),
    )
    ask, answer = rng.choice(pairs)
    return [Turn(ask, ("I give a short and friendly answer.",), answer)]


# Each skill with its share of the plain conversations.
SKILLS: tuple[tuple[Skill, float], ...] = (
    (greeting, 9),
    (identity, 8),
    (capital, 8),
    (colour, 5),
    (animal, 6),
    (opposite, 4),
    (fact, 10),
    (exercises.arithmetic, 14),
    (exercises.story_sum, 4),
    (exercises.compare, 2),
    (exercises.counting, 6),
    (exercises.calendar, 5),
    (exercises.listing, 6),
    (exercises.category, 2),
    (exercises.spelling, 5),
    (exercises.echo, 9),
    (exercises.editing, 5),
    (memory, 8),
    (unknown, 6),
    (storytelling, 6),
    (advice, 6),
)
