"""A large history of real text: `bench_corpus.py FOLDER DOCUMENTS` makes `dsh.db` and `documents.jsonl` there.

The text is source and documentation of Python and the packages installed in .venv and .venv-dev, cut into pieces of 200
to 2,000 characters, in turns of a person, a model and its tools; three in ten have a path and a hexadecimal id of their
own, three in a hundred are Chinese. The same packages and number give the same history. 200 documents are a session.
The JSONL file has the same documents, one a line, for tools that read files.
"""

from __future__ import annotations

import json
import random
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ROOT / ".venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
sys.path += [str(ROOT), str(_PACKAGES)]

from dsh.core.lossless import dumps  # noqa: E402
from dsh.store import writes  # noqa: E402
from dsh.store.database import Database  # noqa: E402

SESSION = 200  # documents
_DAY = 86_400_000
_END = 1_790_000_000_000
_TOOLS = ("bash", "read", "grep", "write", "edit")
_MODELS = ("deepseek-chat", "deepseek-reasoner", "sonnet-4", "gpt-5", "qwen-coder")
_SOURCES = (None, None, None, "claude", "codex")
_CHINESE = (
    "数据库 连接 超时 会话 日志 测试 失败 模型 回答 搜索 结果 为空 服务端 计划 修改 配置 文件 错误 重新 启动 索引 性能 "
    "内存 线程 缓存 请求 响应 用户 权限 部署 版本 回滚 接口 参数 返回 代码 提交 分支 合并 冲突 编译 依赖 安装 更新"
)


def pieces() -> list[str]:
    """Every piece of text there is, in an order that does not depend on the file system."""
    roots = [Path(sysconfig.get_paths()["stdlib"])]
    roots += [ROOT / env / "lib" for env in (".venv", ".venv-dev")]
    found: list[str] = []
    draw = random.Random(1)
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.suffix not in (".py", ".pyi", ".rst", ".md", ".txt") or not path.is_file():
                continue
            text = path.read_text("utf-8", "replace").replace("\0", "")
            at = 0
            while at < len(text):
                end = at + min(int(draw.expovariate(1 / 420)) + 200, 2000)
                piece = text[at:end].strip()
                if len(piece) > 100:
                    found.append(piece)
                at = end
    draw.shuffle(found)
    return found


class _Speaker:
    def __init__(self) -> None:
        self.draw = random.Random(2)
        self._pieces = pieces()
        self._next = 0

    def piece(self) -> str:
        draw = self.draw
        text = self._pieces[self._next % len(self._pieces)]
        self._next += 1
        roll = draw.random()
        if roll < 0.3:
            text += f"\nsrc/mod{draw.randrange(4000)}/part{draw.randrange(90)}.py:{draw.randrange(900)}"
            text += f" {draw.getrandbits(160):040x}"
        elif roll < 0.33:
            text = "".join(draw.choices(_CHINESE.split(), k=draw.randint(40, 200))) + "。"
        return text


def events(number: int, speaker: _Speaker, count: int, at: int) -> Iterator[tuple[str, int, Any, str | None]]:
    """The events of a session with `count` documents: type, time, payload, surface."""
    user = {"kind": "user"}
    said, turn = 0, 0
    model = _MODELS[number % len(_MODELS)]
    made = {"provenance": {"provider": "bench", "model": model}}
    while said < count:
        turn += 1
        yield "turn/start", at, {"turn": turn, "trigger": {"kind": "message", "source": user}}, None
        yield "user/message", at, {"content": [_text(speaker.piece()[:600])], "source": user}, '"append"'
        said += 2
        calls = speaker.draw.randrange(5)
        for step in range(1, calls + 2):
            place = {"turn": turn, "step": step}
            yield "step/start", at, place, None
            if said == 2:
                header = {"config": {"provider": "bench", "model": model}}
                yield "request/header", at, {"header": header, "reason": "initial"}, None
            at += 5000
            if step > calls:
                yield "assistant/message", at, {**place, "content": [_text(speaker.piece())], **made}, '"append"'
            else:
                asked = {"callId": f"c{said}", "name": speaker.draw.choice(_TOOLS)}
                asked["arguments"] = dumps({"command": speaker.piece()[:200]})
                block = {"type": "tool-call", "id": asked["callId"], "name": asked["name"]}
                block["arguments"] = asked["arguments"]
                content = [_text(speaker.piece()[:300]), block]
                yield "assistant/message", at, {**place, "content": content, **made}, '"append"'
                yield "tool/call", at, {**place, **asked}, None
                result = {"callId": asked["callId"], "content": [_text(speaker.piece())], "isError": False}
                yield "tool/result", at + 900, {**place, **result}, '"append"'
                said += 3
            yield "step/end", at + 900, place, None
        yield "turn/end", at + 900, {"turn": turn, "reason": {"kind": "completed"}}, None
        at += 120_000


def _text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def make(folder: Path, documents: int) -> dict[str, Any]:
    """Write both files; how long it took, in seconds, and how large they are, in MiB."""
    speaker = _Speaker()
    db = Database.open(folder / "dsh.db")
    sessions = max(1, documents // SESSION)
    began, written = time.perf_counter(), 0
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as lines:
        for number in range(sessions):
            at = _END - (sessions - number) * (700 * _DAY // sessions)
            id_ = f"{number:05d}-{speaker.draw.getrandbits(48):012x}"
            project = speaker.draw.randrange(60)
            cwd = f"/home/me/work/team{project % 7}/project{project}"
            header = {"id": id_, "version": 0, "createdAt": at, "cwd": cwd}
            with db.transaction():
                writes.insert_session(db, header, source=_SOURCES[number % len(_SOURCES)])
                for seq, (type_, time_, data, op) in enumerate(events(number, speaker, SESSION, at)):
                    writes.insert_event(db, id_, seq, type_, time_, dumps(data), None, op)
                    text = _said(type_, data)
                    if text:
                        written += 1
                        line = {"session": id_, "seq": seq, "type": type_, "text": text}
                        lines.write(json.dumps(line, ensure_ascii=False) + "\n")
    stored = time.perf_counter()
    for _ in writes.rebuild_search(db):
        pass
    indexed = time.perf_counter()
    db.close()
    sizes = {name: (folder / name).stat().st_size / 2**20 for name in ("dsh.db", "documents.jsonl")}
    times = {"written": stored - began, "indexed": indexed - stored}
    return {"documents": written, "sessions": sessions, **times, "mib": sizes}


def _said(type_: str, data: Any) -> str:
    if type_ == "tool/call":
        return f"{data['name']}\n{data['arguments']}"
    return "\n".join(block.get("text") or block["arguments"] for block in data.get("content", ()))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    print(json.dumps(make(target, int(sys.argv[2]))))
