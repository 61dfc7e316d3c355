"""What mypy --strict must accept of the package's types, and what it must not."""
import kvpolicy


def kept(text: str) -> list[int]:
    shape = kvpolicy.Shape(1, 1, 1, 8, 100)
    state = kvpolicy.State(kvpolicy.Policy(text), shape)
    first: kvpolicy.Range = state.ranges(0, 0)[0]
    pages, last = state.page_table(0, 0)
    store = kvpolicy.Store(kvpolicy.Arena(shape, 1 << 20)).fork(0)
    return [first.begin, *pages, last, store.rows, *state.tokens(0, 0)]


kvpolicy.Policy(5)  # type: ignore[arg-type]
kvpolicy.Shape(1, 1, 1, 8, "many")  # type: ignore[arg-type]
