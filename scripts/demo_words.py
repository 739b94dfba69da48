"""Word tables of the shipped model's corpus: every fact and name its sentences are made of."""


def _split(text: str) -> list[str]:
    return text.split()


NAMES = _split(
    "Anna Ben Clara David Emma Finn Grace Henry Iris Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor Wendy "
    "Alice Bob Carol Daniel Eva Frank Helen Ivan Julia Karl Lucy Max Nina Oscar Peter Ruth Simon Tom Zoe"
)

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "China": "Beijing",
    "England": "London", "Austria": "Vienna", "Greece": "Athens", "Norway": "Oslo", "Poland": "Warsaw",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Portugal": "Lisbon", "Ireland": "Dublin",
    "Hungary": "Budapest", "Russia": "Moscow", "Egypt": "Cairo", "Kenya": "Nairobi", "India": "New Delhi",
    "Canada": "Ottawa", "Mexico": "Mexico City", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago",
    "Brazil": "Brasilia", "Turkey": "Ankara", "Thailand": "Bangkok", "Vietnam": "Hanoi", "South Korea": "Seoul",
    "Australia": "Canberra", "the United States": "Washington", "the Netherlands": "Amsterdam", "Belgium": "Brussels",
    "Switzerland": "Bern",
}  # fmt: skip

CITIES = (*CAPITALS.values(), "New York", "Boston", "Chicago", "San Francisco", "Los Angeles", "Seattle", "Munich",
          "Milan", "Barcelona", "Osaka", "Shanghai", "Sydney", "Toronto", "Mumbai", "Zurich", "Hamburg", "Lyon",
          "Geneva", "Porto", "Kyoto", "Singapore", "Dubai", "Istanbul", "Prague")  # fmt: skip

COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "the sun": "yellow", "blood": "red",
    "a banana": "yellow", "an orange": "orange", "a carrot": "orange", "milk": "white", "chocolate": "brown",
    "a lemon": "yellow", "a strawberry": "red", "an elephant": "gray", "a frog": "green", "the sea": "blue",
    "a tomato": "red", "a leaf": "green", "the night": "black", "a flamingo": "pink", "a plum": "purple",
    "a crow": "black", "a swan": "white", "honey": "golden", "a cucumber": "green", "a cloud": "white",
}  # fmt: skip

# animal: (sound or way of moving, legs, home, young)
ANIMALS = {
    "dog": ("barks", 4, "in a house", "puppy"), "cat": ("meows", 4, "in a house", "kitten"),
    "cow": ("moos", 4, "on a farm", "calf"), "horse": ("neighs", 4, "on a farm", "foal"),
    "duck": ("quacks", 2, "by a pond", "duckling"), "sheep": ("bleats", 4, "on a farm", "lamb"),
    "lion": ("roars", 4, "in the savanna", "cub"), "bear": ("growls", 4, "in the forest", "cub"),
    "frog": ("croaks", 4, "by a pond", "tadpole"), "owl": ("hoots", 2, "in the forest", "owlet"),
    "bee": ("buzzes", 6, "in a hive", "larva"), "pig": ("grunts", 4, "on a farm", "piglet"),
    "hen": ("clucks", 2, "on a farm", "chick"), "wolf": ("howls", 4, "in the forest", "pup"),
    "snake": ("hisses", 0, "in the grass", "snakelet"), "spider": ("spins webs", 8, "in a web", "spiderling"),
    "ant": ("carries food", 6, "in a nest", "larva"), "fish": ("swims", 0, "in the water", "fry"),
    "goat": ("bleats", 4, "on a farm", "kid"), "deer": ("runs fast", 4, "in the forest", "fawn"),
    "eagle": ("flies high", 2, "in the mountains", "eaglet"), "rabbit": ("hops", 4, "in a burrow", "kit"),
    "penguin": ("swims", 2, "on the ice", "chick"), "kangaroo": ("hops", 2, "in Australia", "joey"),
}  # fmt: skip

OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "day": "night", "fast": "slow", "happy": "sad", "old": "young",
    "full": "empty", "open": "closed", "hard": "soft", "light": "dark", "left": "right", "rich": "poor",
    "high": "low", "long": "short", "wet": "dry", "clean": "dirty", "early": "late", "loud": "quiet", "good": "bad",
    "strong": "weak", "thick": "thin", "near": "far", "start": "end", "true": "false", "yes": "no", "push": "pull",
    "win": "lose", "give": "take", "buy": "sell", "heavy": "light", "wide": "narrow", "warm": "cool", "in": "out",
}  # fmt: skip

FACTS = (
    ("How many days are in a week?", "A week has seven days."),
    ("How many months are in a year?", "A year has twelve months."),
    ("How many hours are in a day?", "A day has twenty-four hours."),
    ("How many minutes are in an hour?", "An hour has sixty minutes."),
    ("How many seconds are in a minute?", "A minute has sixty seconds."),
    ("How many days are in a year?", "A year has 365 days, and a leap year has 366."),
    ("How many legs does a table have?", "Most tables have four legs."),
    ("How many letters are in the alphabet?", "The English alphabet has 26 letters."),
    ("How many continents are there?", "There are seven continents."),
    ("How many planets are in the solar system?", "There are eight planets in the solar system."),
    ("What is the largest planet?", "Jupiter is the largest planet in the solar system."),
    ("What is the smallest planet?", "Mercury is the smallest planet in the solar system."),
    ("What is the closest star to Earth?", "The Sun is the closest star to Earth."),
    ("What is the largest ocean?", "The Pacific is the largest ocean."),
    ("What is the highest mountain?", "Mount Everest is the highest mountain on Earth."),
    ("What is the largest animal?", "The blue whale is the largest animal."),
    ("What is the fastest land animal?", "The cheetah is the fastest land animal."),
    ("What is the tallest animal?", "The giraffe is the tallest animal."),
    ("What is water made of?", "Water is made of hydrogen and oxygen."),
    ("At what temperature does water boil?", "Water boils at 100 degrees Celsius."),
    ("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows drink?", "Cows drink water. They give milk."),
    ("What do plants need to grow?", "Plants need water, light, air and soil."),
    ("Where does the sun rise?", "The sun rises in the east."),
    ("Where does the sun set?", "The sun sets in the west."),
    ("What do we breathe?", "We breathe air. Our bodies need the oxygen in it."),
    ("What is ice?", "Ice is frozen water."),
    ("What is snow?", "Snow is frozen water that falls from clouds."),
    ("What is rain?", "Rain is water that falls from clouds."),
    ("What is a computer?", "A computer is a machine that follows instructions to work with data."),
    ("What is a book?", "A book is a set of pages with words or pictures to read."),
    ("What is a star?", "A star is a very hot ball of gas that gives light."),
    ("What is the Moon?", "The Moon is a ball of rock that goes around the Earth."),
    ("What is a river?", "A river is water that flows over land to the sea."),
    ("What is a language model?", "A language model is a program that predicts the next piece of text."),
    ("What is a token?", "A token is a small piece of text that a language model reads or writes."),
    ("What is a tree?", "A tree is a tall plant with a trunk, branches and leaves."),
    ("What is a triangle?", "A triangle is a shape with three sides."),
    ("What is a square?", "A square is a shape with four equal sides."),
    ("What is a circle?", "A circle is a round shape without corners."),
    ("What is a season?", "A season is a part of the year: spring, summer, autumn or winter."),
    ("What comes after winter?", "Spring comes after winter."),
    ("What comes after summer?", "Autumn comes after summer."),
    ("Which season is the coldest?", "Winter is the coldest season."),
    ("Which season is the warmest?", "Summer is the warmest season."),
    ("Who wrote Romeo and Juliet?", "William Shakespeare wrote Romeo and Juliet."),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci painted the Mona Lisa."),
    ("What is Python?", "Python is a programming language that is easy to read."),
    ("What language do people speak in France?", "People in France speak French."),
    ("What language do people speak in Japan?", "People in Japan speak Japanese."),
    ("What language do people speak in Spain?", "People in Spain speak Spanish."),
    ("What language do people speak in Brazil?", "People in Brazil speak Portuguese."),
    ("Is the Earth round?", "Yes, the Earth is round like a ball."),
    ("Is fire hot?", "Yes, fire is very hot."),
    ("Is ice hot?", "No, ice is cold."),
    ("Can fish fly?", "No, most fish cannot fly. They swim in water."),
    ("Can birds fly?", "Yes, most birds can fly."),
    ("Can penguins fly?", "No, penguins cannot fly, but they swim very well."),
    ("Why is the sky blue?", "The sky is blue because air scatters blue light more than red light."),
    ("Why do we sleep?", "We sleep so that our bodies and minds can rest."),
    ("Why do leaves fall?", "Many trees drop their leaves in autumn to save water in winter."),
    ("How do birds fly?", "Birds fly by beating their wings against the air."),
    ("How do fish breathe?", "Fish breathe with gills, which take oxygen from water."),
)

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December")  # fmt: skip
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
           "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")  # fmt: skip

GROUPS = {
    "fruits": _split("apple banana orange pear grape lemon cherry plum peach mango strawberry melon kiwi fig"),
    "vegetables": _split("carrot potato onion tomato pea bean cabbage spinach pepper cucumber broccoli leek"),
    "colours": _split("red blue green yellow orange purple white black brown pink gray"),
    "animals": _split("dog cat horse cow lion tiger bear wolf rabbit mouse elephant fox deer sheep"),
    "birds": _split("eagle owl robin duck swan crow sparrow parrot penguin hawk gull"),
    "tools": _split("hammer saw drill wrench knife shovel rake pliers file axe"),
    "drinks": _split("water milk tea coffee juice lemonade cocoa soda"),
    "sports": _split("football tennis swimming running rowing chess hockey golf skiing boxing"),
    "jobs": _split("teacher doctor farmer baker pilot nurse driver painter cook singer writer builder"),
    "rooms": _split("kitchen bedroom bathroom hall office attic cellar garage"),
    "planets": _split("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"),
    "shapes": _split("circle square triangle oval star cube cone line"),
    "instruments": _split("piano violin guitar drum flute trumpet harp cello"),
    "cities": _split("Paris London Rome Berlin Tokyo Madrid Vienna Oslo Lisbon Boston"),
    "languages": _split("English French German Spanish Italian Japanese Chinese Arabic Hindi Russian"),
}

WORDS = _split(
    "about above across after again air all along also animal another answer any apple arm around ask away baby "
    "back ball bank basket beach bed before begin behind bell below best better bird black blue boat body book "
    "both box boy bread bridge bright bring brother build busy cake call camera candle car card care carry cat "
    "chair change cheese child circle city clean clear climb clock close cloud coat cold color come cook corner "
    "could country cover cup dance dark day deep desk door down draw dream dress drink drive during early earth "
    "east easy eat egg eight empty end engine enough even evening ever every eye face fall family farm fast "
    "father feel feet few field find fine fire first fish five floor flower fly follow food foot forest four free "
    "fresh friend from front fruit full game garden gate gentle girl give glass gold good grass great green "
    "ground group grow hair half hand happy hard hat head hear heart heavy help here high hill hold home hope "
    "horse hot hour house how idea inside island jump just keep key kind king kitchen know lake lamp land large "
    "last late laugh leaf learn leave left letter light like line list listen little live long look lost loud "
    "love low lunch machine make many map mark market maybe mean meet milk mind minute mirror money month moon "
    "more morning most mother mountain mouth move much music name near never new next nice night nine north nose "
    "note nothing number ocean often oil old one only open orange order other outside over own page paint paper "
    "park part path people pencil person picture piece place plain plan plant play point pond power present price "
    "problem program pull purple push queen question quick quiet quite rain read ready real red remember rest "
    "return rice rich ride right ring river road rock roof room root rose round run safe sail salt same sand "
    "school sea seat second seed sell send seven shape sharp ship shirt shoe shop short show side sign silver "
    "simple since sing sister sit six sky sleep slow small smile snow soap soft some song soon sound soup south "
    "space speak spoon spring square stand star start stay stone stop store storm story street strong sugar "
    "summer sun sure sweet swim system table take talk tall tea teach tell ten thank thing think three through "
    "ticket time tiny today together tomorrow too top touch toward town toy train travel tree true try turn two "
    "under until upon use value very village voice wait walk wall want warm wash watch water wave way weather "
    "week well west wheel when where white why wide wild wind window winter wish with wonder wood word work world "
    "write yard year yellow yes young your"
)

TOPICS = (
    "quantum physics", "the stock market", "ancient history", "football results", "chemistry", "politics", "opera",
    "tax law", "medicine", "modern art", "philosophy", "space travel", "gardening", "car engines", "French cooking",
    "the news", "biology", "poetry", "economics", "old movies", "video games", "mathematics", "programming", "music",
    "geography", "fashion", "sailing", "chess openings", "volcanoes", "dinosaurs", "robots", "cryptography",
    "Roman law", "jazz", "architecture", "the weather", "satellites", "databases", "compilers", "deep learning",
)  # fmt: skip

ADJECTIVES = _split("small old brave happy quiet clever kind tired hungry curious funny proud shy lazy gentle young")
OBJECTS = _split("key coin map lamp book box stone ring letter shell kite hat ball feather cup bell")
PLACES = _split("forest garden village river mountain beach castle farm market lake cave island meadow library")
FOODS = _split("bread soup cake cheese apples honey rice pie milk nuts berries fish")
WEATHER = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear", "stormy")
