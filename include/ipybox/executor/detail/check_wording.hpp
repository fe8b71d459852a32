#pragma once
// Which of a type checker's faults are told, and in which words. A false alarm is worse than a
// missed fault: what Python's own check of the call would let through is not told.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/executor/detail/call_text.hpp>
#include <ipybox/executor/detail/lsp_messages.hpp>
#include <ipybox/tools/apigen.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::detail {

// The generated packages by name, such as mcptools.files, and their modules.
using CheckedPackages = std::map<std::string, std::map<std::string, ToolStub>, std::less<>>;

// A generated module; module is null where there is none.
struct CheckedModule {
    std::string package;
    const ToolStub* module = nullptr;
    // As people call it: files.read_file.
    std::string shown() const {
        return package.substr(package.rfind('.') + 1) + '.' + module->module;
    }
};

inline CheckedModule module_named(const CheckedPackages& packages, std::string_view name) {
    const auto dot = name.rfind('.');
    if (dot == name.npos) return {};
    const auto package = packages.find(name.substr(0, dot));
    if (package == packages.end()) return {};
    const auto module = package->second.find(std::string(name.substr(dot + 1)));
    if (module == package->second.end()) return {};
    return {package->first, &module->second};
}

// That of the stub with this URI. stubs: the URI of their directory.
inline CheckedModule module_at(const CheckedPackages& packages, std::string_view uri,
                               std::string_view stubs) {
    constexpr std::string_view ending = ".pyi";
    if (!uri.starts_with(stubs) || !uri.ends_with(ending) || uri.size() < stubs.size() + 6)
        return {};
    std::string name(uri.substr(stubs.size() + 1));
    name.resize(name.size() - ending.size());
    std::replace(name.begin(), name.end(), '/', '.');
    return module_named(packages, name);
}

// The lines of a cell; out of range, nothing.
class CellText {
public:
    explicit CellText(std::string_view text) : text_(text) {
        starts_.push_back(0);
        for (std::size_t i = 0; i < text.size(); ++i)
            if (text[i] == '\n') starts_.push_back(i + 1);
    }
    std::string_view between(const TextPlace& begin, const TextPlace& end) const {
        const auto from = at(begin), to = at(end);
        return from < to ? text_.substr(from, to - from) : std::string_view();
    }
    // The name before the innermost parenthesis that is open at `place`, and where it ends.
    std::pair<std::string_view, TextPlace> callee_at(const TextPlace& place) const {
        return name_before(innermost_open(text_.substr(0, at(place))));
    }
    // The same of the call that ends at `place`.
    std::pair<std::string_view, TextPlace> callee_of_call(const TextPlace& begin,
                                                          const TextPlace& end) const {
        const auto call = between(begin, end);
        if (call.empty() || call.back() != ')') return {};
        const auto open = innermost_open(call.substr(0, call.size() - 1));
        return name_before(open == call.npos ? open : at(begin) + open);
    }

private:
    std::pair<std::string_view, TextPlace> name_before(std::size_t open) const {
        if (open == text_.npos) return {};
        auto start = open;
        while (start > 0 && is_word(static_cast<unsigned char>(text_[start - 1]))) --start;
        const auto name = text_.substr(start, open - start);
        if (!is_python_identifier(name)) return {};
        const auto line = std::upper_bound(starts_.begin(), starts_.end(), start) - 1;
        return {name, {static_cast<std::size_t>(line - starts_.begin()), open - 1 - *line}};
    }
    std::size_t at(const TextPlace& place) const {
        if (place.line >= starts_.size()) return text_.size();
        return std::min(starts_[place.line] + std::min(place.column, text_.size()), text_.size());
    }
    std::string_view text_;
    std::vector<std::size_t> starts_;
};

// Of "… `a` … `b` …" the words in backticks.
inline std::vector<std::string_view> quoted_words(std::string_view message) {
    std::vector<std::string_view> words;
    message = message.substr(0, message.find('\n'));
    for (;;) {
        const auto begin = message.find('`');
        const auto end = begin == message.npos ? begin : message.find('`', begin + 1);
        if (end == message.npos) return words;
        words.push_back(message.substr(begin + 1, end - begin - 1));
        message.remove_prefix(end + 1);
    }
}

inline std::string meant(const std::string& name) {
    return name.empty() ? name : "; did you mean " + name + "?";
}

inline std::string comma_list(const std::vector<std::string>& names) {
    std::string list;
    for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
    return list;
}

// Types whose values Python's check of a call refuses wherever the type checker does. Others may
// become what is wanted (paths, dates, enumerations, numbers of libraries), or be another type at
// run time.
inline bool is_plain_type(std::string_view type) {
    const auto inside = [&](std::string_view outer) -> std::optional<std::string_view> {
        if (!type.starts_with(outer) || !type.ends_with(']')) return std::nullopt;
        return type.substr(outer.size(), type.size() - outer.size() - 1);
    };
    if (type == "str" || type == "int" || type == "bool" || type == "Result") return true;
    if (type == "float" || type == "float*") return true;
    if (const auto value = inside("Literal[")) {
        if (value->starts_with('"')) return value->find('"', 1) == value->size() - 1;
        return *value == "True" || *value == "False" ||
               (!value->empty() && value->find_first_not_of("-0123456789") == value->npos);
    }
    // Not of dicts, whose types must be the same: one of integers would be none of numbers.
    if (const auto item = inside("list[")) return is_plain_type(*item);
    return false;
}

// found: the type of what was passed; expected: that of the parameter.
inline bool certainly_wrong(std::string_view expected, std::string_view found) {
    const auto says = [](std::string_view type, std::string_view word) {
        return type.find(word) != type.npos;
    };
    if (found.starts_with("CoroutineType[")) return !says(expected, "Any");
    if (!is_plain_type(found)) return false;
    const bool literal = says(found, "Literal[");
    // A text may be one of those that are allowed; a float may be an integer.
    if (says(expected, "Literal[") && !literal) return false;
    if (says(found, "float") && says(expected, "int")) return false;
    // Python's check takes a list for one.
    if (says(expected, "tuple[") && found.starts_with("list[")) return false;
    return found != "Result" || !says(expected, "dict[");
}

// A value in the words of a person: "txt" for Literal["txt"].
inline std::string shown_type(std::string_view type) {
    constexpr std::string_view literal = "Literal[";
    if (type.starts_with(literal) && type.ends_with(']') && type.find('|') == type.npos)
        type = type.substr(literal.size(), type.size() - literal.size() - 1);
    if (type.starts_with("CoroutineType[")) return "a coroutine; await it";
    constexpr std::size_t longest = 200;
    std::string text(type.substr(0, longest));
    return type.size() > longest ? text + "…" : text;
}

// Whether a module takes a name as it is on the wire: its classes quote those that differ.
inline bool takes_on_wire(const ToolStub& stub, const std::string& name) {
    return stub.wire_names.contains(name) || stub.text.find('"' + name + '"') != std::string::npos;
}

// What a call passes that its function does not take, or the other way round; empty when that
// cannot be told.
inline std::string wrong_arguments(const CallArguments& given, const ToolStub& stub,
                                   const std::string& subject) {
    if (!given.understood) return {};
    if (given.positional > 0 && !given.keywords.empty())
        return subject + " takes either one Params object or dict, or arguments by name";
    if (given.positional > 1)
        return subject + " takes its arguments by name, or one Params object or dict";
    if (given.positional > 0) return {};
    std::vector<std::string> known, missing, unknown;
    for (const auto& one : stub.parameters) known.push_back(one.name);
    const auto has = [](const auto& list, const std::string& name) {
        return std::find(list.begin(), list.end(), name) != list.end();
    };
    for (const auto& name : given.keywords) {
        if (has(known, name)) continue;
        if (takes_on_wire(stub, name)) return {};
        unknown.push_back(name);
    }
    if (!unknown.empty()) {
        std::string text = subject + " has no argument \"" + unknown[0] + '"';
        for (std::size_t i = 1; i < unknown.size(); ++i) text += ", \"" + unknown[i] + '"';
        const auto near = unknown.size() == 1 ? nearest_name(unknown[0], known) : std::string();
        if (!near.empty()) return text + meant(near);
        return text + (known.empty() ? "; it takes none" : "; it takes " + comma_list(known));
    }
    if (given.unpacks) return {};
    for (const auto& one : stub.parameters)
        if (one.required && !has(given.keywords, one.name)) missing.push_back(one.name);
    return missing.empty() ? std::string() : subject + " needs " + comma_list(missing);
}

// A call of a generated function. text: what the fault's range holds.
inline std::string worded_call(const TypeFault& fault, std::string_view text,
                               const CheckedModule& in) {
    const auto words = quoted_words(fault.message);
    // The message names the function last but where it names types.
    const bool async = fault.message.find("`run_async`") != fault.message.npos;
    const auto subject = std::string(async ? "run_async()" : "run()") + " of " + in.shown();
    if (!async && fault.message.find("`run`") == fault.message.npos) return {};
    if (fault.code == "no-matching-overload")
        return wrong_arguments(arguments_of(text), *in.module, subject);
    if (text.starts_with('*')) return {};
    const std::string name(keyword_of(text));
    if (fault.code == "unknown-argument") {
        if (name.empty() || takes_on_wire(*in.module, name)) return {};
        return subject + " has no argument \"" + name + "\"; it takes none";
    }
    if (fault.code == "too-many-positional-arguments")
        return subject + " takes one Params object or dict at most";
    if (fault.code != "invalid-argument-type" || words.size() < 3) return {};
    const auto expected = words[words.size() - 2], found = words.back();
    if (!certainly_wrong(expected, found)) return {};
    if (name.empty())
        return subject + " takes its arguments by name, or one Params object or dict, not " +
               shown_type(found);
    return subject + ": " + name + " must be " + shown_type(expected) + ", not " +
           shown_type(found);
}

// A call of a generated class. callee: its name there; known: what it takes.
inline std::string worded_construction(const TypeFault& fault, std::string_view text,
                                       const CheckedModule& in, std::string_view callee,
                                       const std::vector<std::string>& known) {
    const auto words = quoted_words(fault.message);
    const auto subject = std::string(callee) + "() of " + in.shown();
    if (fault.code == "missing-argument") {
        const auto given = arguments_of(text);
        if (words.empty() || given.unpacks || given.positional > 0) return {};
        // What is passed by its name on the wire is there.
        for (const auto& name : given.keywords)
            if (std::find(known.begin(), known.end(), name) == known.end()) return {};
        return subject + " needs " + comma_list({words.begin(), words.end()});
    }
    const std::string name(keyword_of(text));
    if (name.empty()) return {};
    if (fault.code == "unknown-argument") {
        if (takes_on_wire(*in.module, name)) return {};
        return subject + " has no argument \"" + name + '"' + meant(nearest_name(name, known));
    }
    if (fault.code != "invalid-argument-type" || words.size() != 2) return {};
    // Objects may come as dicts, lists as what is none.
    std::string_view rest = words[0];
    while (!rest.empty()) {
        const auto bar = std::min(rest.find(" | "), rest.size());
        static constexpr std::string_view scalars[] = {"str", "int", "float", "bool", "None"};
        if (std::find(std::begin(scalars), std::end(scalars), rest.substr(0, bar)) ==
            std::end(scalars))
            return {};
        rest.remove_prefix(std::min(bar + 3, rest.size()));
    }
    if (words[1].starts_with("list[") || !certainly_wrong(words[0], words[1])) return {};
    return subject + ": " + name + " must be " + shown_type(words[0]) + ", not " +
           shown_type(words[1]);
}

// Whether a package of the workspace has more than was generated: a file `name`, or a definition of
// that name in `module` where that is not empty.
using OwnCode = std::function<bool(const std::string& package, const std::string& module,
                                   const std::string& name)>;

// A name that a generated module or package does not have, or a module that cannot be imported.
inline std::string worded_name(const TypeFault& fault, const CheckedPackages& packages,
                               const OwnCode& own) {
    const auto words = quoted_words(fault.message);
    if (words.empty()) return {};
    std::string owner(words[0]), name;
    if (fault.code == "import-not-found") {
        const auto dot = owner.rfind('.');
        if (dot == owner.npos) return {};
        name = owner.substr(dot + 1), owner.resize(dot);
    } else if (words.size() == 2 && fault.message.starts_with("Module `")) {
        name = words[1];
    }
    if (!is_python_identifier(name)) return {};
    if (const auto found = packages.find(owner); found != packages.end()) {
        if (name.starts_with("__") || found->second.contains(name) || own(owner, {}, name))
            return {};
        std::vector<std::string> modules;
        for (const auto& [module, stub] : found->second) modules.push_back(module);
        return owner + " has no module " + name + meant(nearest_name(name, modules));
    }
    if (const auto in = module_named(packages, owner); in.module != nullptr) {
        if (name.starts_with("__") || own(in.package, in.module->module, name)) return {};
        static const std::vector<std::string> names{"run", "run_async", "Params", "Result"};
        return owner + " has no " + name + meant(nearest_name(name, names));
    }
    // A package that nobody registered may be there all the same.
    std::vector<std::string> siblings;
    for (const auto& [package, modules] : packages)
        if (package.rfind('.') == owner.size() && package.starts_with(owner))
            siblings.push_back(package.substr(owner.size() + 1));
    const auto near = nearest_name(name, siblings);
    if (near.empty() || own(owner, {}, name)) return {};
    return owner + " has no package " + name + meant(near);
}

// The fields of a class in a stub.
inline std::vector<std::string> fields_of(std::string_view stub, std::string_view name) {
    std::vector<std::string> fields;
    const auto head = "\nclass " + std::string(name) + '(';
    auto at = stub.find(head);
    if (at == stub.npos) return fields;
    at = stub.find('\n', at + head.size());
    while (at != stub.npos && stub.substr(at + 1).starts_with("    ")) {
        const auto end = std::min(stub.find('\n', at + 1), stub.size());
        const auto line = stub.substr(at + 5, end - at - 5);
        if (const auto field = line.substr(0, line.find(": ")); is_python_identifier(field))
            fields.emplace_back(field);
        at = end < stub.size() ? end : stub.npos;
        // An empty line may stand in a text about the class.
        while (at != stub.npos && stub.substr(at + 1).starts_with('\n')) ++at;
    }
    return fields;
}

// An attribute that an object of a generated class does not declare. It may have it all the same,
// so only what looks like a slip is told. in: the module of the class.
inline std::string worded_field(const TypeFault& fault, const CheckedModule& in) {
    const auto words = quoted_words(fault.message);
    if (words.size() != 2 || !fault.message.starts_with("Object of type `")) return {};
    if (!is_python_identifier(words[0]) || !is_python_identifier(words[1])) return {};
    const auto near = nearest_name(words[1], fields_of(in.module->text, words[0]));
    if (near.empty()) return {};
    return std::string(words[0]) + " of " + in.shown() + " has no field " + std::string(words[1]) +
           meant(near);
}

}  // namespace ipybox::detail
