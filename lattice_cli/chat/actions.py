"""Talk: one chat as it stands, with a method for everything that a command does to it.

Knows the conversation, the manner of answering, the partner and where sessions are kept; prints nothing and knows no
terminal. What a method returns is a sentence to show, rows of (name, value), or an Asking that somebody must hear out:

    asking = talk.ask(text)                # WindowFull: nothing was sent; offer drop, summarise or stop
    completion = exchange.answer(asking)   # shows it as it comes, Ctrl-C ends it
    note = talk.keep(asking, completion)   # saves it; a sentence where something must be said

Bad input is a LatticeError with a sentence and a hint, and changes nothing. Longer than others, because it is the one
list of what commands can do; the doing is in session, manner, window, keeping, export and tally.

Thread: any (one at a time)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lattice_cli.chat.export import write_export
from lattice_cli.chat.keeping import Keeping
from lattice_cli.chat.manner import Manner
from lattice_cli.chat.partner import Count, Partner, Question, Thinking
from lattice_cli.chat.restoring import from_anywhere
from lattice_cli.chat.session import Session
from lattice_cli.chat.tally import Tally
from lattice_cli.chat.window import Plan, WindowFull, room, shortened, summable, summary_tokens
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.worker import Ticket
from lattice_cli.errors import PromptTooLong, UsageError

__all__ = ["Asking", "Rows", "Talk", "WindowFull"]

Rows = Sequence[tuple[str, str]]
MODES: tuple[Thinking, ...] = ("show", "hide", "off")
GLIMPSE = 40


@dataclass(frozen=True, slots=True)
class Asking:
    """An answer under way. `max_tokens` is the most it may have (None: the server decides); `note` must be said before
    it. `summarises`: it is a summary of so many turns, not an answer.
    """

    ticket: Ticket
    plan: Plan
    max_tokens: int | None = None
    note: str | None = None
    summarises: int = 0

    @property
    def job_id(self) -> str:
        return self.ticket.jobs[0].id


class Talk:
    """A chat. Owns its session."""

    def __init__(
        self,
        partner: Partner,
        session: Session | None = None,
        manner: Manner | None = None,
        keeping: Keeping | None = None,
        thinking: Thinking = "show",
        schema: str | None = None,
        hints: bool = True,
    ) -> None:
        """`hints`: sentences may name commands."""
        self.partner = partner
        self.session = session or Session()
        self.manner = manner or Manner()
        self.thinking: Thinking = thinking
        self._keeping = keeping or Keeping(None)
        self._schema = schema
        self._hints = hints
        self._tally = Tally()
        self._past: list[Session] = []
        self._undone: list[Session] = []
        self._thought: Session | None = None  # ends with thoughts that were cut before there was an answer

    # Answers. Each gives an Asking, or raises WindowFull, BadRequest, EngineUnavailable; UsageError where there is
    # nothing to do it with.

    def ask(self, text: str) -> Asking:
        """Ask a new message."""
        return self._begin(self._plan(self.session, self.session.asked(text)))

    def retry(self, temperature: str | None = None) -> Asking:
        """The last message again, once with another temperature where one is given (as typed)."""
        try:
            manner = self.manner.typed("temperature", temperature) if temperature else self.manner
        except UsageError as error:
            raise UsageError(error.message, param=error.param, hint="`/retry 0.9`, or `/retry` alone") from None
        return self._begin(self._plan(self.session, self._asked_last(), manner))

    def last_message(self) -> str:
        """The last message of the user, for an editor. Raises: UsageError where there is none."""
        return self._asked_last().turns[-1].text

    def edit(self, text: str) -> Asking:
        """The last message replaced by `text`, and answered anew."""
        if not text.strip():
            raise UsageError("the message is empty, so nothing was changed")
        asked = self._asked_last()
        return self._begin(self._plan(self.session, asked.before_last_question().asked(text)))

    def continue_(self) -> Asking:
        """Go on with the last answer, where it was cut or stopped. Show only what comes: the rest was shown."""
        session = self._thought or self.session
        last = session.last_answer
        if last is None:
            raise UsageError("there is no answer to go on with", hint="ask something first")
        plan = self._plan(self.session, session.before_last_answer())
        question = replace(plan.question, turns=session.open_conversation, continues=True)
        return self._begin(replace(plan, question=question, prefix=last.text, thought=last.reasoning or ""))

    def keep(self, asking: Asking, completion: Completion) -> str | None:
        """Take an answer in, whole or partial, and save it; a sentence where something must be said.

        Raises: WindowFull where a server refused the prompt as too long.
        """
        plan, finished = asking.plan, completion.finished
        if finished is not None:
            self._tally.add(finished)
        answer, reasoning = plan.prefix + completion.answer, plan.thought + completion.reasoning
        if completion.failed is not None and not (completion.answer or completion.reasoning):
            if isinstance(completion.failed.error, PromptTooLong):
                raise WindowFull(completion.failed.error.message, plan)
            return None
        if asking.summarises:
            return self._summed_up(asking, completion)
        if plan.question.continues and not (completion.answer or completion.reasoning):
            return "nothing was added to the answer"
        self._thought = None
        if not answer.strip():
            return self._unanswered(plan.asked.answered("", reasoning) if reasoning.strip() else None, completion)
        self._change(plan.asked.answered(answer, reasoning))
        notes = [self._save()]
        if finished is not None and finished.reason == "length":
            notes = [self._cut(asking), *notes]
        return "; ".join(filter(None, notes)) or None

    # A full window.

    def drop_oldest(self, full: WindowFull) -> Asking:
        """Leave the oldest turns out of prompts from here on, as many as must go, and ask; `note` says how many."""
        plan = shortened(self.partner, full.plan)
        if plan is None:
            raise UsageError("leaving out all earlier messages is not enough", hint="send a shorter message")
        gone = plan.asked.forgotten - full.plan.asked.forgotten
        what = f"the oldest {_counted(gone, 'turn')}" if gone else "the summary"
        return replace(self._begin(plan), note=f"{what} will not be sent any more; what was saved stays saved")

    def summarise(self, full: WindowFull) -> Asking:
        """Have the model sum up the oldest turns; `keep` puts the summary in their place. Then `again`."""
        found = summable(self.partner, full.plan)
        if found is None:
            raise UsageError("the older messages are too long to be summed up at once", hint="drop the oldest instead")
        question, turns = found
        most = summary_tokens(self.partner.context_tokens)
        note = f"summing up the oldest {_counted(turns - full.plan.asked.forgotten, 'turn')}"
        plan = Plan(self.session, full.plan.asked, question)
        return Asking(self.partner.ask(question, most), plan, most, note, summarises=turns)

    def again(self, full: WindowFull) -> Asking:
        """What was to be asked when the window was full, with the summary that was made since."""
        asked = full.plan.asked
        if self.session.summary is not None:
            asked = asked.summed_up(self.session.summary, min(self.session.forgotten, len(asked.turns) - 1))
        return self._begin(replace(full.plan.about(asked), before=self.session))

    # The conversation. Sentences.

    def reset(self) -> str:
        """Forget the conversation; the system prompt stays. What was saved stays saved, and a new session begins."""
        count = _counted(self.session.questions, "message")
        kept = ["system prompt"] if self.session.system else []
        kept += ["screen", "input history", "the saved session"] if self._keeping.saved else ["screen", "input history"]
        self.session = self.session.reset()
        self._past, self._undone, self._thought = [], [], None
        self._keeping.begin_anew()
        return f"forgotten: {count} and the answers; {', '.join(kept[:-1])} and {kept[-1]} stay"

    def undo(self) -> str:
        """Take back what changed last: a message and its answer, or another answer to the same."""
        if not self._past and not self.session.turns:
            raise UsageError("there is nothing to undo")
        before = self._past.pop() if self._past else self.session.before_last_question()
        self._undone.append(self.session)
        return self._moved(before)

    def redo(self) -> str:
        """Bring back what `undo` took."""
        if not self._undone:
            raise UsageError("there is nothing to redo")
        self._past.append(self.session)
        return self._moved(self._undone.pop())

    def system(self, text: str | None = None) -> str:
        """Show, set or ("-") take away the system prompt."""
        if not text or not text.strip():
            return f"system prompt: {self.session.system}" if self.session.system else "there is no system prompt"
        self.session = self.session.told(None if text.strip() == "-" else text)
        what = "set" if self.session.system else "taken away"
        note = self._save() if self.session.turns else None
        return f"system prompt {what}, from the next message on; /reset starts afresh" + (f"; {note}" if note else "")

    # How it answers.

    def set(self, name: str, value: str) -> str:
        """One setting, as typed; "-" takes it away. Raises: UsageError in the words of the server."""
        self.manner = self.manner.typed(name, value)
        known = name.strip().lower().replace("-", "_")
        return f"{known}: {dict(self.settings())[known]}"

    def settings(self) -> Rows:
        """Every setting with its value, and where the value comes from."""
        return self.manner.rows(self.partner.advice, self.partner.floor)

    def think(self, mode: str = "") -> str:
        """`show`, `hide` or `off`; nothing: say which."""
        wanted = mode.strip().lower()
        if wanted and wanted not in MODES:
            raise UsageError(f"`{mode.strip()}` is no way to think", param="think", hint="show, hide or off")
        self.thinking = next((known for known in MODES if known == wanted), self.thinking)
        return {
            "show": "thoughts are shown",
            "hide": "thoughts are hidden; the model still thinks",
            "off": "the model answers without thoughts",
        }[self.thinking]

    def models(self) -> Sequence[str]:
        """The models that `model` can take, the present one first."""
        return self.partner.models()

    def model(self, name: str) -> str:
        """Another model; the talk stays. Blocks for as long as loading takes. A failure keeps the old one."""
        before = self.partner.name
        self.partner = self.partner.switched(name.strip())
        self._thought = None
        if self.partner.name == before:
            return f"`{before}` answers already"
        self._keeping.answered_by(from_anywhere(name.strip()))
        window = self.partner.context_tokens
        size = f", {window:,} tokens of context" if window else ""
        return f"`{self.partner.name}` answers from here on{size}; the conversation stays"

    # Sessions and files.

    def save(self, name: str = "") -> str:
        """Save under a name; with `--no-save` it is saved from here on."""
        return self._keeping.save_as(name, self.session, self.partner.name)

    def load(self, name: str) -> str:
        """Another session, by its name or number. Show `session.turns` afterwards, if you like."""
        self.session, sentence = self._keeping.load(name)
        self._past, self._undone, self._thought = [], [], None
        return sentence

    def sessions(self) -> Sequence[tuple[str, str, str, str, str]]:
        """Number, name, title, messages and age of each, the latest first."""
        return self._keeping.rows()

    def export(self, path: str, *, replace: bool = False) -> str:
        """Write the talk to a `.md` or `.json` file. Raises: FileThere where the file is there and `replace` is
        False.
        """
        return write_export(path, self.session, self.partner.name, self._keeping.title(self.session), replace=replace)

    def copy_text(self) -> str:
        """The last answer, for the clipboard. Raises: UsageError where there is none."""
        if self.session.last_answer is None:
            raise UsageError("there is no answer to copy")
        return self.session.last_answer.text

    def stats(self) -> Rows:
        """What this chat has cost so far."""
        return [("model", self.partner.name), *self._tally.rows(), ("window", self.tokens()[2])]

    def tokens(self) -> tuple[Count, int | None, str]:
        """Tokens of the conversation so far, the window (None: not known), and both as a sentence."""
        turns = self.session.conversation
        count = self.partner.count(self._question(turns, self.manner)) if turns else Count(0)
        window, about = self.partner.context_tokens, "" if count.exact else "about "
        if window is None:
            return count, None, f"{about}{count.tokens:,} tokens; the server does not tell its window"
        full = f"{100 * count.tokens / window:.0f}%"
        return count, window, f"{about}{count.tokens:,} of {window:,} tokens ({full} full)"

    # Inside.

    def _plan(self, before: Session, asked: Session, manner: Manner | None = None) -> Plan:
        return Plan(before, asked, self._question(asked.conversation, manner or self.manner))

    def _question(self, turns: Sequence[object], manner: Manner) -> Question:
        return Question(tuple(turns), manner, thinks=self.thinking != "off", schema=self._schema)  # type: ignore[arg-type]

    def _begin(self, plan: Plan) -> Asking:
        most = room(self.partner, plan)
        return Asking(self.partner.ask(plan.question, most), plan, most)

    def _asked_last(self) -> Session:
        """The session up to its last message. Raises: UsageError where there is none."""
        session = self._thought or self.session
        if session.last_question is None:
            raise UsageError("there is no message yet", hint="ask something first")
        return session.before_last_question().asked(session.last_question)

    def _change(self, session: Session) -> None:
        self._past.append(self.session)
        self._undone.clear()
        self.session = session

    def _moved(self, session: Session) -> str:
        """To an earlier or later state; the system prompt is not part of it."""
        before, self.session, self._thought = self.session, session.told(self.session.system), None
        note = self._save()
        fewer = before.questions - session.questions
        text = _glimpse((before if fewer > 0 else session).last_question or "")
        what = "taken back" if fewer > 0 else "brought back" if fewer < 0 else "now with its other answer"
        said = f"{what}: {text}"
        if before.turns == session.turns and before.summary != session.summary:
            said = "the summary is taken back" if session.forgotten < before.forgotten else "the summary stands again"
        return "; ".join(filter(None, (said, note)))

    def _save(self) -> str | None:
        return self._keeping.keep(self.session, self.partner.name)

    def _unanswered(self, thought: Session | None, completion: Completion) -> str | None:
        self._thought = thought
        if completion.failed is not None:
            return None
        if not self._hints:
            return "there was no answer"
        if thought is not None:
            return "the thought was cut before an answer; /continue goes on with it, else your message is not kept"
        return "there was no answer, so your message is not kept (Up brings it back)"

    def _summed_up(self, asking: Asking, completion: Completion) -> str | None:
        finished, text = completion.finished, completion.answer.strip()
        if finished is None or finished.reason == "cancelled" or not text:
            raise UsageError("there is no whole summary, so nothing was changed", hint="drop the oldest turns instead")
        turns = min(asking.summarises, len(self.session.turns))
        self._change(self.session.summed_up(text, turns))
        return self._save()

    def _cut(self, asking: Asking) -> str | None:
        if asking.max_tokens is not None and asking.max_tokens != asking.plan.question.manner.max_tokens:
            return f"the answer was cut: the context window of {self.partner.context_tokens} tokens is full"
        return "the answer was cut at `max_tokens`; /continue goes on with it" if self._hints else None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _glimpse(text: str) -> str:
    line = " ".join(text.split())
    return f"`{line[:GLIMPSE]}…`" if len(line) > GLIMPSE else f"`{line}`"
