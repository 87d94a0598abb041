"""Ranks of PyTorch, forked from a process that has loaded what they import: ``forked_ranks.py NUMBER SCRIPT WORDS ...``.

The output of rank 0 goes to ``rank-0`` of the current folder, and so on. The last line printed lists the exit codes.
Without arguments it reads jobs from standard input, so that a single process loads PyTorch for all jobs.
"""

import ast
import contextlib
import importlib
import json
import os
import runpy
import sys

import torch
import torch.distributed


def load_imports_of(script):
    """Load the modules of import statements that are not indented.

    Modules that a script finds later, in a folder of its own, are left to it.
    """
    for statement in ast.parse(script).body:
        if isinstance(statement, ast.Import):
            for each in statement.names:
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(each.name)
        elif isinstance(statement, ast.ImportFrom) and statement.module != "__future__":
            with contextlib.suppress(ModuleNotFoundError):
                module = importlib.import_module(statement.module)
                for each in statement.names:
                    if not hasattr(module, each.name):  # which loads the names of taccl's packages
                        importlib.import_module(f"{statement.module}.{each.name}")


def load_parts_of_torch(script):
    """Load what the first optimizer or export of a script would load (1 to 2 s of CPU)."""
    if "torch.optim" in script:
        importlib.import_module("torch._dynamo")
    if "torch.export" in script:
        torch.export.export(torch.nn.ReLU(), (torch.zeros(1),)).run_decompositions()


def code_of(rank, script, words):
    """Play one rank to the end of the script, as a process of its own would; its exit code."""
    said = os.open(f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.argv = [script, *words]
    sys.path[0] = os.path.dirname(script)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(code):
    """End this process without the second of CPU that PyTorch takes to clear up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def text_of(script):
    with open(script, encoding="utf-8") as file:
        return file.read()


def codes_of(num_ranks, script, words):
    """Exit codes of ranks that run the script."""
    text = text_of(script)
    load_parts_of_torch(text)
    load_imports_of(text)
    running = []
    for rank in range(num_ranks):
        if not (child := os.fork()):
            end(code_of(rank, script, words))
        running.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in running]


def serve():
    """Run each job of standard input, a line of JSON, and answer with a line of exit codes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        load_parts_of_torch(text_of(job["script"]))  # once for all jobs
        if not (child := os.fork()):  # which loads what the script imports, so that later jobs do not have it
            os.chdir(job["folder"])
            os.environ.clear()
            os.environ |= job["environment"]
            answers.write(json.dumps(codes_of(job["num_ranks"], job["script"], job["words"])) + "\n")
            answers.flush()
            end(0)
        if os.waitpid(child, 0)[1]:
            sys.exit("a job ended without its exit codes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) == 1:
        serve()
    else:
        print(json.dumps(codes_of(int(sys.argv[1]), sys.argv[2], sys.argv[3:])))
        end(0)
