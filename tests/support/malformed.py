"""Messages that no honest client sends: malformed in every way that we know of, by chance."""

from __future__ import annotations

import numpy as np

SIZE = 6
PICKLE = b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94."
OVERSIZE = np.broadcast_to(0.0, (10**12,))  # claims eight terabytes, and holds one number


def good():
    return np.full(SIZE, 0.5)


def put(value, place=0):
    vector = good()
    vector[place] = value
    return vector


class Sly(np.ndarray):
    """An array that says of itself what one likes to hear."""

    @property
    def shape(self):
        return (SIZE,)


def make_value(draws):
    """Return a value of an update that must be refused."""
    place = int(draws.integers(SIZE))
    makers = (
        lambda: put(np.nan, place),
        lambda: put(np.inf, place),
        lambda: put(-np.inf, place),
        lambda: put(float(draws.choice([1e38, -1e200, 1.7e308])), place),
        lambda: np.zeros(int(draws.choice([0, 1, SIZE - 1, SIZE + 1, 999]))),
        lambda: np.zeros((1, SIZE)),
        lambda: np.zeros(SIZE, dtype=draws.choice(["int64", "float32", "complex128", "bool", "float16", "U3"])),
        lambda: np.array([None] * SIZE, dtype=object),
        lambda: np.ma.masked_array(good(), mask=[True] * SIZE),
        lambda: good().view(Sly),
        lambda: OVERSIZE,
        lambda: PICKLE,
        lambda: draws.choice([None, 0.5, "0.5"]),
        lambda: good().tolist(),
        lambda: {},
        lambda: {"weights": good(), "num_examples": -89},
        lambda: {"weight": good()},
        lambda: {"weights": put(np.nan, place)},
        lambda: {7: good()},
        lambda: np.zeros(SIZE, dtype=[("a", "f8")]),
    )
    return makers[int(draws.integers(len(makers)))]()


def make_message(draws, names, number):
    """Return client, round and value of a message of which at least one is wrong."""
    wrong = int(draws.integers(4))
    if wrong == 0:
        strangers = ("stranger", "", "A", "a ", "a\0", "а")  # the last is a Cyrillic letter
        return strangers[int(draws.integers(len(strangers)))], number, good()  # numpy's choice would drop the zero byte
    if wrong == 1:
        rounds = [number - 1, number + 1, True, None, float(number), -1]
        return str(draws.choice(list(names))), rounds[int(draws.integers(len(rounds)))], good()
    return str(draws.choice(list(names))), number, make_value(draws)
