"""The functions of all crates, and what is reached by calls from one of them."""
import re
import sys
from collections import defaultdict

from rust import body_end

KEYWORDS = set("if while for match return loop in as let else move unsafe fn use pub where "
               "Some Ok Err None Box Vec String assert debug_assert".split())
PRIMITIVE = set("u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize bool str char f32 f64".split())
# Types of the standard library that traits of ours are written for.
FOREIGN = {"Arc", "Box", "Option", "Result", "Vec"}
FUNCTION = re.compile(r"\bfn\s+(\w+)")


class Function:
    """One function with a body."""

    def __init__(self, module, name, owners, start, text, returns):
        self.module, self.name, self.owners = module, name, owners
        self.text, self.returns = text, returns
        self.start = start
        self.lines = sum(1 for line in text.splitlines() if line.strip())

    def label(self):
        return f"{self.module.file}:{'::'.join([*self.owners[:1], self.name])}"


def functions(module, code):
    """The functions of a module's file that lie in this module."""
    blocks = []  # (start, end, (type, trait)) of impl and trait blocks
    for found in re.finditer(r"(?m)^[ \t]*(?:unsafe\s+|pub(?:\([^)]*\))?\s+)*(impl|trait)\b([^;{]*)\{",
                             module.text):
        head = found[2]
        while re.search(r"<[^<>]*>", head):
            head = re.sub(r"<[^<>]*>", " ", head.replace("->", "  "))
        head = re.sub(r"\bwhere\b.*", "", head, flags=re.S)
        trait, _, owner = head.rpartition(" for ")
        names = [re.findall(r"\w+", part)[-1] for part in (owner.split(":")[0] if found[1] == "trait"
                 else owner, trait) if re.findall(r"\w+", part)]
        blocks.append((found.start(), body_end(module.text, found.end() - 1), names))
    for found in FUNCTION.finditer(module.text):
        opened = re.compile(r"[^;{]*").match(module.text, found.end()).end()
        if module.text[opened:opened + 1] != "{":
            continue
        end = body_end(module.text, opened)
        owners = [names for start, stop, names in blocks if start < found.start() < stop]
        head = module.text[found.end():opened]
        line = code.count("\n", 0, max(code.find(module.text[found.start():opened]), 0)) + 1
        yield Function(module, found[1], owners[-1] if owners else [], line,
                       module.text[found.start():end], head.rpartition("->")[2])


class Calls:
    """Every function, and what its text calls."""

    def __init__(self, crates, ambiguous):
        self.crates, self.ambiguous, self.unclear = crates, ambiguous, defaultdict(int)
        self.all = [function for crate in crates for top in crate.roots for module in top.all()
                    for function in functions(module, crate.code[module.file])]
        depends = {crate.name: crate.depends for crate in crates}
        self.below = {name: self.closure(name, depends) for name in depends}
        self.named = defaultdict(list)
        self.typed = defaultdict(lambda: defaultdict(set))  # file, name -> types said of it
        for function in self.all:
            self.named[function.name].append(function)
            for scope in self.scopes(function.module):
                self.typed[scope][function.name] |= set(re.findall(r"\b[A-Z]\w*", function.returns))
        self.owners = {owner for function in self.all for owner in function.owners}
        for module in (m for crate in crates for top in crate.roots for m in top.all()):
            said = re.findall(r"\b(\w+)\s*:\s*([^:,;={}()][^,;={}()]*)", module.code)
            said += re.findall(r"\blet\s+(?:mut\s+)?(\w+)\s*=\s*&?(?:\w+::)*([A-Z]\w*)\s*(?:::|\{)",
                               module.code)
            for name, kind in said:
                found = set(re.findall(r"\b[A-Z]\w*", kind)) or PRIMITIVE & {kind.strip("&* ")}
                for scope in self.scopes(module) if found else ():
                    self.typed[scope][name] |= found

    @staticmethod
    def closure(name, depends):
        """The crate and those it uses, directly or not."""
        return {name}.union(*(Calls.closure(other, depends) for other in depends[name]))

    @staticmethod
    def scopes(module):
        return module.file, module.file.split("/")[1]

    def types(self, module, name, depth=3):
        for scope in self.scopes(module):
            if name in self.typed[scope]:
                found = self.typed[scope][name]
                more = [self.types(module, one, depth - 1) for one in found
                        if depth and one != name and one not in self.owners]
                return found.union(*(some for some in more if some))
        return None

    def free(self, module, parts):
        """The functions that a path names."""
        if parts[0].startswith("pagetide"):
            wanted = parts[0].removeprefix("pagetide_")
            tops = [crate.roots[0] for crate in self.crates if crate.name == wanted and crate.roots]
            module, parts = (tops[0], parts[1:]) if tops else (module, parts)
        elif parts[0] in module.uses and module.uses[parts[0]][0].startswith("pagetide"):
            return self.free(module, module.uses[parts[0]] + parts[1:])
        found = module.find(parts)
        return [function for function in self.named[parts[-1]] if found and not function.owners
                and function.module.file == found[0].file]

    def of(self, function):
        """The functions that `function` calls, as far as the text tells."""
        module, inside = function.module, function.text[function.text.find("{"):]
        for found in re.finditer(r"(\.\s*)?\b((?:\w+\s*::\s*)*)(\w+)\s*(?:::\s*<[^;(){}]*>)?\s*\(",
                                 inside):
            dot, path, name = found[1], found[2].replace(" ", "").split("::")[:-1], found[3]
            if name in KEYWORDS or not name[0].islower() or name not in self.named:
                continue
            below = self.below[module.file.split("/")[1]]
            methods = [other for other in self.named[name]
                       if set(other.owners) - FOREIGN and other.module.file.split("/")[1] in below]
            if not dot and (not path or not path[-1][0].isupper()):
                yield from self.free(module, tuple(path) + (name,))
            elif not dot:
                owners = function.owners if path[-1] == "Self" else [path[-1]]
                yield from (other for other in methods if set(owners) & set(other.owners))
            else:
                before = re.search(r"(\w+)\s*(?:\([^()]*\)|\[[^\[\]]*\])?\s*\??$",
                                   inside[:found.start()])
                kinds = None
                if before:
                    kinds = (set(function.owners) if before[1] == "self"
                             else self.types(module, before[1]))
                if kinds is not None:
                    yield from (other for other in methods if kinds & set(other.owners) - FOREIGN)
                elif len(methods) <= self.ambiguous:
                    yield from methods
                else:
                    self.unclear[name] += 1


def follow(calls, start, stops):
    """Everything reached from `start`, first come first; stopped names are not followed."""
    file, _, name = start.partition(".rs:")
    file, name = f"{file}.rs", name.split("::")
    first = [function for function in calls.named[name[-1]] if function.module.file == file
             and (len(name) == 1 or name[0] in function.owners)]
    if not first:
        sys.exit(f"{start}: there is no such function; write FILE:FUNCTION or FILE:TYPE::FUNCTION")
    reached, depth = {}, 0
    while first:
        following = []
        for function in first:
            owned = ["::".join([owner, function.name]) for owner in function.owners]
            stopped = any(stop in (function.name, *owned) or function.module.file.startswith(stop)
                          for stop in stops)
            if function not in reached and (depth == 0 or not stopped):
                reached[function] = depth
                following += calls.of(function)
        first, depth = following, depth + 1
    return reached
