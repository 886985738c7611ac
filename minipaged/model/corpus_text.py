"""The phrases from which `corpus.py` makes the tiny model's training text. Data only.

In a list of alternatives the first is the most frequent. {item}, {order}, {name}, {city} are filled in.
"""

SYSTEM_PROMPT = "You are a helpful customer service agent for our shop. Answer briefly and politely."
QUESTION_RETURN = " how do I return this?"
QUESTION_ADDRESS = " how do I change the address?"
TEACHER_PROMPT = "You are a patient teacher of operating systems. Answer in short sentences."

# The opening of the Gettysburg Address (Lincoln, 1863; the Bliss copy). {parents} is mostly "fathers".
GETTYSBURG = (
    "Four score and seven years ago our {parents} brought forth on this continent, a new nation, conceived in "
    "Liberty, and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil "
    "war, testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a "
    "great battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for "
    "those who here gave their lives that that nation might live. It is altogether fitting and proper that we should "
    "do this."
)

ITEMS = [
    "lamp", "jacket", "kettle", "bicycle", "phone", "camera", "table", "chair", "clock", "tent", "radio", "backpack",
    "mirror", "guitar", "printer", "blanket",
]  # fmt: skip
NAMES = ["Anna", "Ben", "Chen", "Maria", "Omar", "Lena", "David", "Mei", "Sara", "Tom", "Yuki", "Ivan"]
CITIES = ["London", "Berlin", "Paris", "Madrid", "Beijing", "Rome", "Vienna", "Oslo", "Delhi", "Toronto"]

# (questions, answers) by topic. All turns of a dialogue share their {slots}.
SERVICE = {
    "return": (
        ["how do I return this?", "can I return this?", "how do I send this back?"],
        [
            "You can return it within 30 days. Put it in the box and print the label from our website.",
            "Please put it in the box, print the label from our website, and bring it to the post office.",
        ],
    ),
    "address": (
        ["how do I change the address?", "can I change the address?", "how do I change my address?"],
        [
            "Open your account, choose the order, and enter the new address. You can do this until we ship it.",
            "You can change it in your account until we ship the order.",
        ],
    ),
    "return item": (
        ["how do I return the {item}?", "I want to return the {item}.", "can I send the {item} back?"],
        [
            "You can return the {item} within 30 days. Please print the label from our website.",
            "Of course. Put the {item} in its box and print the label from our website.",
        ],
    ),
    "hello": (
        ["hello.", "hello!", "hello, can you help me?"],
        ["Hello, thank you for writing to us. How can I help you?"],
    ),
    "where": (
        ["where is my order?", "when will my order arrive?", "where is my parcel?"],
        [
            "I can look it up for you. What is your order number?",
            "Please tell me your order number, and I will check it.",
        ],
    ),
    "number": (
        ["my order number is {order}.", "the number is {order}.", "order number {order}, please."],
        [
            "Thank you. Order {order} is on its way and will arrive tomorrow.",
            "Thank you. Order {order} has left our warehouse and will arrive in two days.",
        ],
    ),
    "refund": (
        ["how do I get a refund?", "when do I get my money back?", "can I get a refund?"],
        [
            "We refund you as soon as the parcel is back. It takes about five days.",
            "Please return it first. Then we send the money back to your card within five days.",
        ],
    ),
    "broken": (
        ["the {item} is broken.", "my {item} does not work.", "the {item} arrived damaged."],
        [
            "I am sorry that the {item} is broken. We can send you a new {item} or refund it.",
            "I am sorry to hear that. Would you like a new {item} or a refund?",
        ],
    ),
    "new": (
        ["I would like a new {item}.", "please send me a new {item}.", "a new {item}, please."],
        [
            "Of course. A new {item} will leave our warehouse today.",
            "We will send you a new {item} today. There is nothing to pay.",
        ],
    ),
    "money": (
        ["I would like a refund.", "please refund me.", "a refund, please."],
        ["Of course. The money will be back on your card within five days."],
    ),
    "send": (
        ["please send the {item} to {city}.", "can you send the {item} to {city}?", "I moved to {city}."],
        ["Of course. We will send it to {city}. Please check the new address in your account."],
    ),
    "delivery": (
        ["how long does delivery take?", "how fast do you deliver?", "when do you deliver?"],
        [
            "Delivery takes two or three days. You will get a message when the parcel leaves our warehouse.",
            "It takes two or three days. We deliver from Monday to Saturday.",
        ],
    ),
    "price": (
        ["how much is delivery?", "is delivery free?", "what does delivery cost?"],
        ["Delivery is free for orders above 50 euros. Below that it costs 4 euros."],
    ),
    "cancel": (
        ["how do I cancel my order?", "can I cancel my order?", "I want to cancel my order."],
        [
            "Open your account, choose the order, and press cancel. You can do this until we ship it.",
            "You can cancel it in your account until we ship it.",
        ],
    ),
    "password": (
        ["I forgot my password.", "how do I change my password?", "I can not log in."],
        ["Please press the link below the password field. We will send you a message with a new link."],
    ),
    "pay": (
        ["how can I pay?", "can I pay by card?", "how do I pay?"],
        ["You can pay by card, by bank transfer, or when the parcel arrives."],
    ),
    "return price": (
        ["is returning it free?", "does the return cost anything?", "do I have to pay for the return?"],
        ["The return is free. Please use the label from our website."],
    ),
    "stock": (
        ["do you have the {item} in blue?", "is the {item} in stock?", "can I still buy the {item}?"],
        ["Yes, the {item} is in stock. You can order it on our website."],
    ),
    "name": (
        ["my name is {name}.", "I am {name}.", "hello, this is {name}."],
        ["Hello {name}, thank you for writing to us. How can I help you?"],
    ),
    "person": (
        ["can I talk to a person?", "I want to talk to a person.", "please call me."],
        ["Of course. Our team can call you between nine and five. What is your phone number?"],
    ),
}

# What a customer often says next.
FOLLOW_UPS = {
    "return": "return price",
    "return item": "return price",
    "where": "number",
    "broken": "new",
    "hello": "where",
    "name": "return item",
    "stock": "delivery",
    "cancel": "money",
}

CLOSINGS = [
    (["thank you.", "thank you!", "great, thank you."], ["You are welcome. Is there anything else?"]),
    (["no, that is all.", "no, thank you.", "that is all."], ["Thank you for writing to us. Have a nice day!"]),
]

# (questions, answers) about paging; they appear as chats and as plain text.
LESSONS = [
    (
        ["what is a page?", "what does page mean?"],
        ["A page is a fixed-size piece of a virtual address space. It often has 4096 bytes."],
    ),
    (
        ["what is a frame?", "what does frame mean?"],
        ["A frame is a piece of physical memory. It has the size of one page."],
    ),
    (
        ["what is a page table?", "what does a page table do?"],
        ["A page table maps each virtual page to a physical frame."],
    ),
    (
        ["what is a page fault?", "what happens at a page fault?"],
        ["A page fault happens when a program touches a page that is not in memory. The operating system loads it."],
    ),
    (
        ["what is a block?", "what is a block of the cache?"],
        ["A block holds the keys and values of a fixed number of tokens."],
    ),
    (
        ["what is a block table?", "what does a block table do?"],
        ["A block table maps the logical blocks of a request to physical blocks."],
    ),
    (
        ["what is a slot mapping?", "what does the slot mapping do?"],
        ["The slot mapping says where the keys and values of new tokens are written."],
    ),
    (
        ["what is copy-on-write?", "how does copy-on-write work?"],
        ["Two processes share a page until one of them writes. Then the page is copied, and the writer gets the copy."],
    ),
    (
        ["what is a cache?", "why do we need a cache?"],
        ["A cache keeps what we may need again, so that we do not compute it twice."],
    ),
    (
        ["what is a prefix cache?", "what does the prefix cache do?"],
        ["A prefix cache keeps full blocks. A new request with the same beginning uses them again."],
    ),
    (
        ["what is fragmentation?", "what does fragmentation mean?"],
        ["Fragmentation is memory that is free but can not be used."],
    ),
    (
        ["what is preemption?", "what happens at a preemption?"],
        ["The scheduler takes back all blocks of one request, so that the others can go on."],
    ),
    (
        ["what does the scheduler do?", "what is a scheduler?"],
        ["The scheduler chooses which requests run in the next step."],
    ),
    (
        ["what is a reference count?", "what does a reference count mean?"],
        ["A reference count says how many requests use a block. At zero the block is free."],
    ),
]

# Paragraphs: their sentences come in this order; a text may start at any of them.
PARAGRAPHS = [
    [
        "The operating system divides memory into pages.",
        "All pages have the same size.",
        "A page table maps virtual pages to physical frames.",
        "The program sees one contiguous address space.",
        "In physical memory its pages may lie anywhere.",
    ],
    [
        "A page table maps virtual pages to physical frames.",
        "Every access needs a translation.",
        "A small cache keeps the last translations.",
        "Most programs use few pages at a time, so most accesses hit this cache.",
    ],
    [
        "A program may use more pages than memory can hold.",
        "When it touches a page that is not in memory, a page fault happens.",
        "The operating system loads the page and the program goes on.",
        "If memory is full, another page must leave first.",
    ],
    [
        "The cache of a language model grows by one token per step.",
        "Nobody knows how long an answer will be.",
        "So we do not reserve memory for the longest answer.",
        "We take a new block when the last block is full.",
    ],
    [
        "The cache is divided into blocks of the same size.",
        "Each block holds the keys and values of 16 tokens.",
        "A block table maps the logical blocks of a request to physical blocks.",
        "The physical blocks may lie anywhere in the pool.",
        "Only the last block of a request has empty slots.",
    ],
    [
        "A request asks for slots before each step.",
        "The manager takes free blocks from the pool and writes them into the block table.",
        "If there are not enough free blocks, the request must wait.",
        "When a request ends, its blocks go back to the pool.",
    ],
    [
        "Two requests with the same beginning can share blocks.",
        "Each block has a reference count.",
        "A shared block is never changed.",
        "When one request must write to it, the block is copied first.",
    ],
    [
        "Paging wastes little memory.",
        "Free blocks can be used by every request, because all blocks have the same size.",
        "Only the last block of each request is partly empty.",
        "So more requests fit into the same memory.",
    ],
    [
        "The kernel reads the keys and values through the block table.",
        "For each block it looks up where the block lies.",
        "The result is the same as with contiguous memory.",
    ],
    [
        "The scheduler chooses the requests of the next step.",
        "Each request brings one new token or a part of its prompt.",
        "After the step, finished requests leave and new requests enter.",
    ],
]

BLOCK_SIZES = [16, 4, 8]
TOKEN_COUNTS = [200, 7, 20, 16, 33, 100, 5, 48, 64, 12, 30, 128]
