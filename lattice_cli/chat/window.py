"""Does the next prompt fit the window, with room for an answer: asked before anything is sent.

Nothing is ever cut silently: what does not fit is a WindowFull with the numbers, and whoever asked decides what goes.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lattice_cli.chat.manner import Manner
from lattice_cli.chat.partner import Count, Partner, Question
from lattice_cli.chat.session import SUMMARY_ASKED, Session
from lattice_cli.errors import PromptTooLong

MOST_ROOM_TOKENS = 256  # an answer may need more; with less it is hardly worth asking
SUMMARY_TOKENS = 400


@dataclass(frozen=True, slots=True)
class Plan:
    """What is about to be asked: `before` is the session if nothing comes of it. `continues` as Question has it."""

    before: Session
    asked: Session
    question: Question
    prefix: str = ""
    thought: str = ""

    def about(self, asked: Session) -> Plan:
        """The same, asked of a session that has less in its prompt."""
        going_on = asked.answered(self.prefix, self.thought).open_conversation
        turns = going_on if self.question.continues else asked.conversation
        return replace(self, asked=asked, question=replace(self.question, turns=turns))


class WindowFull(PromptTooLong):
    """The next prompt and room for an answer do not fit the window. Nothing was sent, nothing was lost.

    The message has the numbers. Offer: `talk.drop_oldest(full)`; `talk.summarise(full)`, and when that was kept
    `talk.again(full)`; or nothing. `can_shorten` False: there are no older turns, and only a shorter message helps.
    `no_room`: the prompt alone is too long, so that asking for a shorter answer helps nobody.
    """

    def __init__(self, message: str, plan: Plan, *, no_room: bool = False) -> None:
        self.plan = plan
        self.no_room = no_room
        self.can_shorten = plan.asked.without_oldest() is not None
        shorter = "`/reset` forgets the conversation" if self.can_shorten else "send a shorter message"
        super().__init__(message, hint=shorter if no_room else f"{shorter}, or ask for less with `max_tokens`")


def room_wanted(context_tokens: int, max_tokens: int | None) -> int:
    """The tokens that an answer should have: what is asked for, at most 256 and an eighth of the window."""
    most = max(1, min(MOST_ROOM_TOKENS, context_tokens // 8))
    return min(max_tokens, most) if max_tokens is not None else most


def room(partner: Partner, plan: Plan) -> int | None:
    """How many tokens the answer may have; None: the server decides. Raises: WindowFull, BadRequest."""
    wanted, context = plan.question.manner.max_tokens, partner.context_tokens
    if context is None:
        return wanted
    count = partner.count(plan.question)
    free = context - count.tokens - 1
    least = room_wanted(context, wanted)
    if free < least:
        raise WindowFull(_told(count, context, max(free, 0), least), plan, no_room=free < 1)
    if not count.exact:
        return wanted
    return free if wanted is None else min(wanted, free)


def _told(count: Count, context: int, free: int, least: int) -> str:
    about = "" if count.exact else "about "
    if free < 1:
        return (
            f"the prompt has {about}{count.tokens} tokens and the context window is {context} tokens, "
            "so there is no room for an answer"
        )
    return (
        f"the prompt has {about}{count.tokens} tokens and the context window is {context} tokens, "
        f"which leaves {free} for an answer, and {least} are wanted"
    )


def shortened(partner: Partner, plan: Plan) -> Plan | None:
    """The plan with as many of the oldest turns left out as must go; None where that is not enough. Where nobody knows
    the window, half of them go.
    """
    blind_goal = max(1, questions_in(plan.asked) // 2) if partner.context_tokens is None else None
    asked = plan.asked
    while (fewer := asked.without_oldest()) is not None:
        asked = fewer
        tried = plan.about(asked)
        if blind_goal is None and _fits(partner, tried):
            return tried
        if blind_goal is not None and questions_in(plan.asked) - questions_in(asked) >= blind_goal:
            return tried
    return None


def summable(partner: Partner, plan: Plan) -> tuple[Question, int] | None:
    """The question that asks for a summary of as many of the oldest turns as can be read at once, and how many turns
    those are; None where not even two can. The last message is never among them.
    """
    session = plan.asked
    ends = [at for at, turn in enumerate(session.turns) if turn.role == "user" and at > session.forgotten]
    context = partner.context_tokens
    ends = ends[: max(1, len(ends) // 2)] if context is None else ends
    for end in reversed(ends):
        part = replace(session, turns=session.turns[:end]).asked(SUMMARY_ASKED)
        question = Question(part.conversation, Manner(), thinks=False)
        if context is None or partner.count(question).tokens + 1 + summary_tokens(context) <= context:
            return question, end
    return None


def summary_tokens(context_tokens: int | None) -> int:
    """The most that a summary may have."""
    return SUMMARY_TOKENS if context_tokens is None else max(1, min(SUMMARY_TOKENS, context_tokens // 4))


def questions_in(session: Session) -> int:
    """The messages of the user that its prompt has."""
    return sum(turn.role == "user" for turn in session.turns[session.forgotten :])


def _fits(partner: Partner, plan: Plan) -> bool:
    try:
        room(partner, plan)
    except WindowFull:
        return False
    return True
