"""An answer as Anthropic's content blocks, in the order they were generated: thinking, text and tool_use.

Blocks come one at a time: a piece of another kind, or of another call, ends the open block and begins the next. A
stream tells every change as it happens and a whole answer the blocks at the end, so both come from the same fold.
"""

from typing import Literal

from attrs import define, field, frozen

from stages.ingress.dialects.choices import Calls
from stages.messages import Delta, ToolCallDelta

Kind = Literal["thinking", "text", "tool_use"]


@define(eq=False)
class Block:
    """One block; its pieces joined are the text, the thinking, or the JSON text of a call's input."""

    index: int
    kind: Kind
    # A tool_use block's call, by its number in the answer, the tool's name, and the model's own id of the call.
    call: int | None = None
    name: str = ""
    call_id: str | None = None
    pieces: list[str] = field(factory=list)

    @property
    def text(self) -> str:
        """Return the pieces joined."""
        return "".join(self.pieces)


@frozen(eq=False)
class Opened:
    """A block has begun."""

    block: Block


@frozen(eq=False)
class Grew:
    """The open block has one more piece, never an empty one."""

    block: Block
    piece: str


@frozen(eq=False)
class Closed:
    """The open block has ended."""

    block: Block


Change = Opened | Grew | Closed


@define(eq=False)
class Blocks:
    """The blocks so far, the last of them open until `end`; calls from number max_calls on are left out."""

    max_calls: int | None = None
    blocks: list[Block] = field(factory=list)
    calls: Calls = field(factory=Calls)
    _changes: list[Change] = field(factory=list)

    def take(self, delta: Delta) -> list[Change]:
        """Take in a Delta, giving what it changes."""
        if delta.reasoning:
            self._grow(self._open("thinking"), delta.reasoning)
        if delta.text:
            self._grow(self._open("text"), delta.text)
        for piece in delta.tool_calls:
            if self.max_calls is None or piece.index < self.max_calls:
                self._take_call(piece)
        return self._told()

    def end(self) -> list[Change]:
        """End the answer, giving what that changes: an answer of nothing is one empty text block."""
        if not self.blocks:
            self._open("text")
        self._changes.append(Closed(self.blocks[-1]))
        return self._told()

    def _take_call(self, piece: ToolCallDelta) -> None:
        self.calls.add(piece)
        block = self._open("tool_use", piece.index, piece.name or "", piece.call_id)
        if piece.arguments:
            self._grow(block, piece.arguments)

    def _open(self, kind: Kind, call: int | None = None, name: str = "", call_id: str | None = None) -> Block:
        last = self.blocks[-1] if self.blocks else None
        if last is not None:
            if (last.kind, last.call) == (kind, call):
                return last
            self._changes.append(Closed(last))
        block = Block(len(self.blocks), kind, call, name, call_id)
        self.blocks.append(block)
        self._changes.append(Opened(block))
        return block

    def _grow(self, block: Block, piece: str) -> None:
        block.pieces.append(piece)
        self._changes.append(Grew(block, piece))

    def _told(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes
