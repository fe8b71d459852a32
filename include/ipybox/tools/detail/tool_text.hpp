#pragma once
// What is said of a tool in few words: a line of an answer to a search, a line of a list with the
// types of its parameters, and a description to call it by. The server's texts are cut and without
// invisible characters; names are those of the generated module.
#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/detail/schema_document.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/error.hpp>
#include <ipybox/tools/detail/model_writer.hpp>
#include <ipybox/tools/detail/tool_module.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// On one line, of at most `limit` bytes; cut behind a word.
inline std::string one_line(std::string_view text, std::size_t limit) {
    std::string line;
    for (const char c : visible_text(text, 4 * limit)) {
        if (c != '\n' && c != '\t' && c != ' ')
            line += c;
        else if (!line.empty() && line.back() != ' ')
            line += ' ';
    }
    if (line.size() <= limit) return line;
    static constexpr std::string_view more = " …";
    const auto room = limit - std::min(limit, more.size());
    auto cut = line.find_last_of(' ', room);
    if (cut == line.npos || cut < room / 2) cut = utf8_border(line, room);
    line.resize(cut);
    return line.append(more);
}

// A literal of Python, with the shorter quotes where it is a text that needs no escapes.
inline std::string in_single_quotes(std::string literal) {
    const bool simple = literal.size() >= 2 && literal.front() == '"' &&
                        literal.find_first_of("'\\") == literal.npos;
    if (simple) literal.front() = literal.back() = '\'';
    return literal;
}

// The types of a schema in a few characters: str, 'a'|'b', list[int], dict.
class ShortTypes {
public:
    explicit ShortTypes(SchemaDocument& document) : document_(document) {}

    std::string text(const Schema& schema, int depth = 0) {
        const auto& s = document_.effective(schema);
        if (s.never || depth > 4 || ++steps_ > 2000) return "Any";
        if (const auto* only = s.value(Key::constant)) return literal(*only);
        if (const auto* list = s.value(Key::enumeration)) return literals(list->get_array());
        for (const auto key : {Key::any_of, Key::one_of})
            if (s.has(key)) return alternatives(s.list(key), depth);
        unsigned types = s.types;
        if (types == 0)
            types = s.has(Key::properties) ? json_object : s.has(Key::items) ? json_array : 0u;
        if (types & json_number) types &= ~json_integer;
        std::vector<std::string> parts;
        for (const auto& [type, bit] : json_types)
            if (types & bit) parts.push_back(of_one(s, bit, depth));
        return joined(parts);
    }

    // The objects inside, with how one gets there: "", "[]" of a list, "[].x" and so on.
    struct Shape {
        std::string way;
        const Schema* object;
    };
    std::vector<Shape> shapes(const Schema& schema) {
        std::vector<Shape> found;
        look(schema, "", 0, found);
        return found;
    }

private:
    static constexpr std::size_t max_literals = 8, max_literal = 40;

    static std::string literal(const json::value& value) {
        if (value.is_structured()) return "…";
        if (!is_text(value)) return python_literal(value);
        const auto whole = view(value.get_string());
        const auto text = whole.substr(0, utf8_border(whole, max_literal));
        return in_single_quotes(python_string(text)) + (text.size() < whole.size() ? "…" : "");
    }
    static std::string literals(const json::array& values) {
        std::vector<std::string> parts;
        for (const auto& value : values) {
            if (parts.size() == max_literals) {
                parts.emplace_back("…");
                break;
            }
            parts.push_back(literal(value));
        }
        return joined(parts);
    }
    std::string alternatives(const std::vector<Schema::Ptr>& branches, int depth) {
        std::vector<std::string> parts;
        for (const auto* branch : branches) {
            if (parts.size() >= max_literals) break;
            parts.push_back(text(*branch, depth + 1));
        }
        return joined(parts);
    }
    std::string of_one(const Schema& s, unsigned type, int depth) {
        if (type == json_array) {
            const auto* items = s.schema(Key::items);
            const auto inner = items ? text(*items, depth + 1) : "Any";
            return inner == "Any" ? "list" : "list[" + inner + ']';
        }
        if (type == json_object) {
            const auto* more = s.schema(Key::additional_properties);
            if (!more || more->never || s.has(Key::properties)) return "dict";
            const auto inner = text(*more, depth + 1);
            return inner == "Any" ? "dict" : "dict[str, " + inner + ']';
        }
        return type == json_string    ? "str"
               : type == json_integer ? "int"
               : type == json_number  ? "float"
               : type == json_boolean ? "bool"
                                      : "None";
    }
    // None last, Any for everything; each once.
    static std::string joined(const std::vector<std::string>& parts) {
        std::string all;
        std::set<std::string_view> seen;
        for (const auto& part : parts) {
            if (part == "Any") return part;
            if (part == "None" || !seen.insert(part).second) continue;
            all += (all.empty() ? "" : "|") + part;
        }
        const bool none = std::find(parts.begin(), parts.end(), "None") != parts.end();
        if (none) all += all.empty() ? "None" : "|None";
        return all.empty() ? "Any" : all;
    }
    void look(const Schema& schema, const std::string& way, int depth, std::vector<Shape>& found) {
        const auto& s = document_.effective(schema);
        if (depth > 3 || found.size() >= max_literals || ++steps_ > 2000) return;
        if (!s.names(Key::properties).empty()) found.push_back({way, &s});
        if (const auto* items = s.schema(Key::items)) look(*items, way + "[]", depth + 1, found);
        for (const auto key : {Key::any_of, Key::one_of})
            for (const auto* branch : s.list(key)) look(*branch, way, depth + 1, found);
    }

    SchemaDocument& document_;
    int steps_ = 0;
};

// The texts of one tool. What it is made of must outlive it.
class ToolText {
public:
    // tool: as tools/list has it. module: the name of its Python module.
    ToolText(std::string_view server, std::string_view module, const json::object& tool)
        : server_(server), module_(module), tool_(tool) {
        input_ = read("inputSchema", ModelWriter::Side::input);
        output_ = read("outputSchema", ModelWriter::Side::output);
        said_ = string_of(tool, "description");
        if (said_.empty()) said_ = string_of(tool, "title");
    }

    // server.tool(required, optional?) – first sentence
    std::string search_line() const {
        static constexpr std::size_t limit = 150, most = 6;
        std::vector<std::string> names;
        for (const bool required : {true, false})
            for (const auto& each : parameters())
                if (each.required == required)
                    names.push_back(each.name.substr(0, 40) + (required ? "" : "?"));
        std::string line = server_ + '.' + module_ + '(';
        for (std::size_t i = 0; i < names.size() && i <= most; ++i)
            line += (i > 0 ? ", " : "") + (i == most ? "…" : names[i]);
        line += (input_ || !names.empty() ? ")" : "…)");
        const auto room = limit - std::min(limit, line.size() + 5);
        if (room > 20 && !said_.empty()) line += " – " + one_line(summary(said_), room);
        return line;
    }

    // tool(a: str, n: int = 10) -> {keys}  # first sentence
    std::string stub_line() const {
        const auto line = module_ + signature(12);
        const auto sentence = one_line(summary(said_), 100);
        return sentence.empty() ? line : line + "  # " + sentence;
    }

    // How it is called, what it is for, a line for each parameter that needs one, an example.
    // coroutine: its run() is one.
    std::string description(bool coroutine) const {
        std::string text = coroutine ? "await " : "";
        text += "mcptools." + server_ + '.' + module_ + ".run" + signature(max_parameters) +
                hint() + '\n';
        if (!said_.empty()) {
            auto paragraph = visible_text(said_, 600);
            for (std::size_t at; (at = paragraph.find("\n\n")) != paragraph.npos;)
                paragraph.erase(at, 1);
            text += paragraph + '\n';
        }
        int nested = 0;
        std::size_t listed = 0;
        for (const auto& each : parameters()) {
            if (++listed > max_parameters) {
                text += "  …\n";
                break;
            }
            add_parameter(text, each, nested);
        }
        text += example();
        return text;
    }

private:
    static constexpr std::size_t max_parameter_line = 160, max_parameters = 50;
    static constexpr int max_nested_lines = 15;
    using Parameter = ModelWriter::Parameter;

    struct Side {
        std::set<std::string> used{"Params", "Result"};
        std::optional<ModelWriter> writer;
    };
    std::unique_ptr<Side> read(const char* key, ModelWriter::Side which) const {
        const auto* schema = tool_.if_contains(key);
        if (!schema || !schema->is_object()) return nullptr;
        auto side = std::make_unique<Side>();
        try {
            side->writer.emplace(*schema, which, side->used);
            side->writer->write(which == ModelWriter::Side::input ? "Params" : "Result");
        } catch (const Error&) {
            return nullptr;  // too large to be typed, and its module takes anything
        }
        return side;
    }
    const std::vector<Parameter>& parameters() const {
        static const std::vector<Parameter> none;
        return input_ ? input_->writer->parameters().each : none;
    }

    // (a: str, n: int = 10) -> {keys}
    std::string signature(std::size_t most) const {
        std::string text = "(";
        if (input_) {
            ShortTypes types(input_->writer->document());
            std::size_t listed = 0;
            for (const auto& each : parameters()) {
                if (listed++ > 0) text += ", ";
                if (listed > most) {
                    text += "…";
                    break;
                }
                text += each.name + ": " + types.text(*each.schema);
                if (!each.value.empty()) text += " = " + in_single_quotes(each.value);
            }
            if (input_->writer->parameters().open && listed <= most)
                text += listed > 0 ? ", **more" : "**more";
        } else {
            text += "**anything";
        }
        text += ')';
        if (!output_) return text;
        const auto& fields = output_->writer->parameters().each;
        text += " -> ";
        if (fields.empty()) {
            auto& document = output_->writer->document();
            return text + ShortTypes(document).text(document.root());
        }
        std::string keys;
        for (std::size_t i = 0; i < fields.size() && i <= 8; ++i)
            keys += (i > 0 ? ", " : "") + (i == 8 ? "…" : fields[i].name);
        return text + '{' + keys + '}';
    }

    std::string hint() const {
        const auto* hints = object_of(tool_, "annotations");
        const auto on = [&](const char* name) {
            const auto* value = hints ? hints->if_contains(name) : nullptr;
            return value && value->is_bool() && value->get_bool();
        };
        return on("readOnlyHint")      ? "  (reads only)"
               : on("destructiveHint") ? "  (destructive)"
                                       : "";
    }

    static std::string range_of(const Schema& s) {
        const auto *least = s.value(Key::minimum), *most = s.value(Key::maximum);
        if (least && most) return python_literal(*least) + ".." + python_literal(*most);
        return least ? "≥ " + python_literal(*least) : most ? "≤ " + python_literal(*most) : "";
    }

    // What a type does not say: a range, a format, what the server writes of it.
    static std::string remarks(const Schema& own, const Schema& meaning) {
        std::string text;
        const auto add = [&](std::string_view part) {
            if (!part.empty()) text += (text.empty() ? "" : "; ") + std::string(part);
        };
        add(range_of(meaning));
        const auto format = own.format.empty() ? meaning.format : own.format;
        add(one_line(format, 30));
        add(one_line(own.description.empty() ? meaning.description : own.description, 400));
        return text;
    }

    void add_parameter(std::string& text, const Parameter& each, int& nested) const {
        auto& document = input_->writer->document();
        auto about = remarks(*each.schema, document.effective(*each.schema));
        const auto given = example_of(each.wire);
        if (!given.empty()) about += (about.empty() ? "e.g. " : "; e.g. ") + given;
        if (!about.empty())
            text += "  " + one_line(each.name + " – " + about, max_parameter_line - 2) + '\n';
        add_nested(text, each.name, *each.schema, 0, nested);
    }
    void add_nested(std::string& text, const std::string& name, const Schema& schema, int depth,
                    int& nested) const {
        auto& document = input_->writer->document();
        ShortTypes types(document);
        std::set<std::string> seen;
        for (const auto& [way, object] : types.shapes(schema))
            for (const auto& [wire, inner] : object->names(Key::properties)) {
                if (nested > max_nested_lines) return;
                const auto path = name + way + '.' + one_line(wire, 60);
                if (!seen.insert(path).second) continue;
                if (++nested > max_nested_lines) {
                    text += "  …\n";
                    return;
                }
                const bool required = std::find(object->required.begin(), object->required.end(),
                                                wire) != object->required.end();
                const auto about = remarks(*inner, document.effective(*inner));
                text += "  " +
                        one_line(path + (required ? "" : "?") + ": " + types.text(*inner) +
                                     (about.empty() ? "" : " – " + about),
                                 max_parameter_line - 2) +
                        '\n';
                if (depth < 2) add_nested(text, path, *inner, depth + 1, nested);
            }
    }

    static std::string short_literal(const json::value& value, std::size_t limit) {
        if (deeper_than(value, 20)) return {};
        auto text = python_literal(value);
        return text.size() > limit ? std::string() : text;
    }
    static const json::value* first_example(const json::object& schema) {
        const auto* all = schema.if_contains("examples");
        if (all && all->is_array() && !all->get_array().empty()) return &all->get_array().front();
        return schema.if_contains("example");
    }
    std::string example_of(std::string_view wire) const {
        const auto* schema = object_of(tool_, "inputSchema");
        const auto* properties = schema ? object_of(*schema, "properties") : nullptr;
        const auto* property = properties ? object_of(*properties, wire) : nullptr;
        const auto* value = property ? first_example(*property) : nullptr;
        return value ? short_literal(*value, 60) : std::string();
    }
    std::string example() const {
        const auto* schema = object_of(tool_, "inputSchema");
        const auto* value = schema ? first_example(*schema) : nullptr;
        const auto text = value && value->is_object() ? short_literal(*value, 300) : std::string();
        return text.empty() ? text : "e.g. " + module_ + ".run(" + text + ")\n";
    }

    const std::string server_, module_;
    const json::object& tool_;
    std::unique_ptr<Side> input_, output_;
    std::string_view said_;
};

}  // namespace ipybox::detail
