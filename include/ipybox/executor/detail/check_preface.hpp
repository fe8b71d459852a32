#pragma once
// What a type checker reads beside a cell: the names that the kernel has, and what generated
// modules import.
#include <array>
#include <cstddef>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/executor/detail/check_wording.hpp>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// Of the packages that generated modules import, what calls of them are judged by.
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 2> runtime_stubs{{
    {"ipybox_kernel", R"(from typing import Any
from typing_extensions import dataclass_transform

SafeInt = int
NotObject = Any

@dataclass_transform(kw_only_default=True)
class Model: ...
class Open:
    def __init__(self, *args: Any, **fields: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
class Out: ...

def __getattr__(name: str) -> Any: ...
)"},
    {"pydantic", R"(from typing import Any

def __getattr__(name: str) -> Any: ...
)"},
}};

// Whether a cell is for a magic command as a whole, and may be no Python.
inline bool is_cell_magic(std::string_view cell) {
    const auto first = cell.find_first_not_of(" \t\r\n");
    return first != cell.npos && cell.substr(first).starts_with("%%");
}

// One statement that gives `name` the meaning that the kernel says it has; empty when that is
// nothing known. number: of a name of its own.
inline std::string preface_line(const CheckedPackages& packages, std::string_view name,
                                std::string_view meaning, std::size_t number) {
    constexpr std::string_view call = "()";
    const auto usable = [](std::string_view word) {
        return is_python_identifier(word) && !is_python_keyword(word);
    };
    if (!usable(name)) return {};
    const auto colon = meaning.find(':');
    const std::string module(meaning.substr(0, colon)), as(name);
    if (colon == meaning.npos) {
        const bool known = packages.contains(module) || module_named(packages, module).module;
        if (known) return "import " + module + " as " + as + '\n';
        // A package of packages is called by its name alone.
        if (name != meaning) return {};
        std::string lines;
        for (const auto& [package, modules] : packages)
            if (package.starts_with(module + '.'))
                for (const auto& [one, stub] : modules)
                    lines += "import " + package + '.' + one + '\n';
        return lines;
    }
    auto member = meaning.substr(colon + 1);
    const bool instance = member.ends_with(call);
    if (instance) member.remove_suffix(call.size());
    if (!usable(member) || !module_named(packages, module).module) return {};
    const auto from = "from " + module + " import " + std::string(member) + " as ";
    if (!instance) return from + as + '\n';
    const auto type = "_ipybox_" + std::to_string(number);
    return from + type + '\n' + as + " = _ipybox_cast(" + type + ", 0)\n";
}

// The cell before the one that is checked. names: as the kernel says, `limit` of them are read.
inline std::string check_preface(const CheckedPackages& packages,
                                 const std::map<std::string, std::string>& names,
                                 std::size_t limit) {
    constexpr std::size_t most = 256u << 10;
    std::string text = "from typing import cast as _ipybox_cast\n";
    std::size_t number = 0;
    for (const auto& [name, meaning] : names) {
        if (number == limit || text.size() > most) break;
        text += preface_line(packages, name, meaning, number++);
    }
    return text;
}

// Of a fault about an attribute of an object that has a name, the place of that name's last
// character.
inline std::optional<TextPlace> object_of_attribute(const TypeFault& fault, const CellText& text) {
    if (fault.code != "missing-attribute" || !fault.message.starts_with("Object of type `"))
        return std::nullopt;
    const auto words = quoted_words(fault.message);
    if (words.size() != 2 || fault.end.column < words[1].size() + 2) return std::nullopt;
    TextPlace place = fault.end;
    place.column -= words[1].size() + 2;
    TextPlace behind = place;
    behind.column += 2;
    const auto around = text.between(place, behind);
    if (around.size() != 2 || around[1] != '.' || !is_word(static_cast<unsigned char>(around[0])))
        return std::nullopt;
    return place;
}

// Of a fault in a call of what may be a generated class, its name there and the place of that
// name's last character.
inline std::pair<std::string_view, TextPlace> class_called(const TypeFault& fault,
                                                           const CellText& text) {
    if (!fault.declared_in.empty()) return {};
    if (fault.code == "missing-argument") return text.callee_of_call(fault.begin, fault.end);
    if (fault.code == "unknown-argument" || fault.code == "invalid-argument-type")
        return text.callee_at(fault.begin);
    return {};
}

}  // namespace ipybox::detail
