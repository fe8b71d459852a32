#pragma once
#include <ipybox/detail/pattern.hpp>

#include <algorithm>
#include <charconv>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/python_source.hpp>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

namespace ipybox::detail {

IPYBOX_DECL void CodePointSet::add(const CodePointSet& other) {
    ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
}

IPYBOX_DECL void CodePointSet::close(bool negated) {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.first < b.first; });
    std::vector<Range> merged;
    for (const auto& range : ranges_)
        if (!merged.empty() && range.first <= merged.back().last + 1)
            merged.back().last = std::max(merged.back().last, range.last);
        else
            merged.push_back(range);
    ranges_.clear();
    char32_t next = 0;
    for (const auto& range : merged) {
        if (negated && range.first > next) ranges_.push_back({next, range.first - 1});
        next = range.last + 1;
    }
    if (negated && next <= 0x10FFFF) ranges_.push_back({next, 0x10FFFF});
    if (!negated) ranges_ = std::move(merged);
    for (std::size_t c = 0; c < ascii_.size(); ++c) ascii_[c] = find(static_cast<char32_t>(c));
}

IPYBOX_DECL bool CodePointSet::overlaps(const CodePointSet& other) const {
    for (auto a = ranges_.begin(), b = other.ranges_.begin();
         a != ranges_.end() && b != other.ranges_.end();) {
        if (a->last < b->first)
            ++a;
        else if (b->last < a->first)
            ++b;
        else
            return true;
    }
    return false;
}

IPYBOX_DECL CodePointSet CodePointSet::of_class(char letter) {
    CodePointSet set;
    const auto lower = static_cast<char>(letter | 32);
    if (lower == 'd' || lower == 'w') set.add('0', '9');
    if (lower == 'w') set.add('A', 'Z'), set.add('a', 'z'), set.add('_', '_');
    if (lower == 's')
        for (const auto& [first, last] :
             {Range{9, 13}, Range{32, 32}, Range{0xA0, 0xA0}, Range{0x1680, 0x1680},
              Range{0x2000, 0x200A}, Range{0x2028, 0x2029}, Range{0x202F, 0x202F},
              Range{0x205F, 0x205F}, Range{0x3000, 0x3000}, Range{0xFEFF, 0xFEFF}})
            set.add(first, last);
    set.close(letter != lower);
    return set;
}

IPYBOX_DECL bool CodePointSet::find(char32_t c) const {
    const auto it = std::lower_bound(ranges_.begin(), ranges_.end(), c,
                                     [](const Range& r, char32_t x) { return r.last < x; });
    return it != ranges_.end() && it->first <= c;
}

class PatternParser {
public:
    // nullopt when it is no pattern, or nested deeper than max_depth.
    static std::optional<PatternTree> parse(std::string_view pattern) {
        PatternParser parser(pattern);
        const auto root = parser.choice(0);
        if (!root || !parser.rest_.empty()) return std::nullopt;
        parser.tree_.root = *root;
        return std::move(parser.tree_);
    }

private:
    using Kind = PatternTree::Kind;
    using Node = PatternTree::Node;
    using Index = std::optional<std::size_t>;
    static constexpr int max_depth = 50;

    explicit PatternParser(std::string_view pattern) : rest_(pattern) {}

    std::size_t add(Kind kind, std::vector<std::size_t> children = {}) {
        Node node;
        node.kind = kind;
        node.children = std::move(children);
        tree_.nodes.push_back(std::move(node));
        return tree_.nodes.size() - 1;
    }
    std::size_t add(CodePointSet set) {
        const auto index = add(Kind::set);
        tree_.nodes[index].set = tree_.sets.size();
        tree_.sets.push_back(std::move(set));
        return index;
    }
    static CodePointSet single(char32_t c) {
        CodePointSet set;
        set.add(c, c);
        set.close(false);
        return set;
    }

    bool skip(std::string_view text) {
        if (rest_.substr(0, text.size()) != text) return false;
        rest_.remove_prefix(text.size());
        return true;
    }

    Index choice(int depth) {
        std::vector<std::size_t> branches;
        do {
            const auto branch = sequence(depth);
            if (!branch) return {};
            branches.push_back(*branch);
        } while (skip("|"));
        return branches.size() == 1 ? branches[0] : add(Kind::choice, std::move(branches));
    }

    Index sequence(int depth) {
        std::vector<std::size_t> parts;
        while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
            const auto part = term(depth);
            if (!part) return {};
            parts.push_back(*part);
        }
        return parts.size() == 1 ? parts[0] : add(Kind::sequence, std::move(parts));
    }

    Index term(int depth) {
        const auto first = take_code_point(rest_);
        Index part;
        bool repeatable = true;
        switch (first) {
            case '^':
                part = add(Kind::begin), repeatable = false;
                break;
            case '$':
                part = add(Kind::end), repeatable = false;
                break;
            case '.': {
                CodePointSet breaks;
                for (const char32_t c : {U'\n', U'\r', U'\u2028', U'\u2029'}) breaks.add(c, c);
                breaks.close(true);
                part = add(std::move(breaks));
                break;
            }
            case '[':
                part = bracket();
                break;
            case '(':
                part = group(depth, repeatable);
                break;
            case '\\':
                part = escape(repeatable);
                break;
            case '*':
            case '+':
            case '?':
                return {};
            default:
                part = add(single(first));
        }
        std::uint32_t least = 0, most = 0;
        while (part && quantifier(least, most)) {
            if (!repeatable || least > most) return {};
            part = add(Kind::repeat, {*part});
            tree_.nodes[*part].least = least;
            tree_.nodes[*part].most = most;
            if (skip("+")) tree_.exact = false;  // possessive in Python
            skip("?");                           // lazy: the same for a yes or no
            repeatable = false;
        }
        return part;
    }

    bool quantifier(std::uint32_t& least, std::uint32_t& most) {
        const auto set = [&](std::uint32_t low, std::uint32_t high) {
            least = low, most = high;
            return true;
        };
        if (skip("*")) return set(0, PatternTree::no_limit);
        if (skip("+")) return set(1, PatternTree::no_limit);
        if (skip("?")) return set(0, 1);
        if (rest_.empty() || rest_[0] != '{') return false;
        const auto number = [](std::string_view& text, std::uint32_t& value) {
            const auto size = std::min(text.find_first_not_of("0123456789"), text.size());
            if (size == 0) return false;
            if (std::from_chars(text.data(), text.data() + size, value).ec != std::errc{})
                value = PatternTree::no_limit - 1;
            text.remove_prefix(size);
            return true;
        };
        auto text = rest_.substr(1);  // without a number it is text
        if (!number(text, least)) return false;
        most = least;
        if (!text.empty() && text[0] == ',') {
            text.remove_prefix(1);
            if (!number(text, most)) most = PatternTree::no_limit;
        }
        if (text.empty() || text[0] != '}') return false;
        rest_ = text.substr(1);
        return true;
    }

    Index group(int depth, bool& repeatable) {
        auto look = Kind::nothing;
        if (skip("?")) {
            const auto name = [&](std::size_t from) {
                const auto end = rest_.find('>');
                if (end == std::string_view::npos || end <= from) return false;
                rest_.remove_prefix(end + 1);
                return true;
            };
            if (skip("="))
                look = Kind::ahead;
            else if (skip("!"))
                look = Kind::not_ahead;
            else if (skip("<="))
                look = Kind::behind;
            else if (skip("<!"))
                look = Kind::not_behind;
            else if (rest_.substr(0, 1) == "<" || rest_.substr(0, 2) == "P<") {
                if (!name(rest_[0] == 'P' ? 2 : 1)) return {};
            } else if (skip(">")) {
                tree_.exact = false;  // atomic in Python
            } else if (!skip(":")) {
                const auto size = std::min(rest_.find_first_not_of("aiLmsux-"), rest_.size());
                if (size == 0) return {};
                rest_.remove_prefix(size);
                tree_.exact = false;
                repeatable = false;
                if (skip(")")) return add(Kind::nothing);
                if (!skip(":")) return {};
                repeatable = true;
            }
        }
        if (depth >= max_depth) return {};
        const auto inside = choice(depth + 1);
        if (!inside || !skip(")")) return {};
        if (look == Kind::nothing) return inside;
        repeatable = false;
        return add(look, {*inside});
    }

    // Hexadecimal digits: exactly `count`, or those in braces.
    std::optional<char32_t> hexadecimal(std::size_t count) {
        std::uint32_t code = 0;
        auto digits = rest_.substr(0, count);
        std::size_t used = count;
        if (rest_.substr(0, 1) == "{") {
            const auto end = rest_.find('}');
            if (end == std::string_view::npos) return {};
            digits = rest_.substr(1, end - 1);
            used = end + 1;
        } else if (digits.size() != count) {
            return {};
        }
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
        if (digits.empty() || end != digits.data() + digits.size() || error != std::errc{} ||
            code > 0x10FFFF)
            return {};
        rest_.remove_prefix(used);
        return code;
    }

    // The single code point of an escape whose letter is taken.
    std::optional<char32_t> escaped_character(char32_t letter) {
        switch (letter) {
            case 't':
                return U'\t';
            case 'n':
                return U'\n';
            case 'v':
                return U'\v';
            case 'f':
                return U'\f';
            case 'r':
                return U'\r';
            case '0':
                if (!rest_.empty() && is_ascii_digit(static_cast<unsigned char>(rest_[0])))
                    return {};
                return U'\0';
            case 'c':
                if (rest_.empty() || !is_ascii_letter(static_cast<unsigned char>(rest_[0])))
                    return {};
                return take_code_point(rest_) & 31;
            case 'x':
                return rest_.substr(0, 1) == "{" ? std::nullopt : hexadecimal(2);
            case 'u': {
                const auto high = hexadecimal(4);
                if (!high || *high >> 10 != 0x36 || rest_.substr(0, 2) != "\\u") return high;
                const auto before = rest_;
                rest_.remove_prefix(2);
                const auto low = hexadecimal(4);
                if (low && *low >> 10 == 0x37)
                    return 0x10000 + ((*high & 0x3FF) << 10 | (*low & 0x3FF));
                rest_ = before;
                return high;
            }
            default:
                return is_ascii_digit(letter) ? std::nullopt : std::optional<char32_t>(letter);
        }
    }

    static bool is_class_letter(char32_t c) {
        return c < 128 &&
               std::string_view("dDwWsS").find(static_cast<char>(c)) != std::string_view::npos;
    }
    // \p{…}: anything, not exactly.
    std::optional<CodePointSet> property() {
        const auto end = rest_.find('}');
        if (rest_.substr(0, 1) != "{" || end == std::string_view::npos) return {};
        rest_.remove_prefix(end + 1);
        tree_.exact = false;
        CodePointSet all;
        all.close(true);
        return all;
    }

    Index escape(bool& repeatable) {
        if (rest_.empty()) return {};
        const auto letter = take_code_point(rest_);
        const auto assertion = [&](Kind kind) {
            repeatable = false;
            return add(kind);
        };
        if (letter == 'b') return assertion(Kind::boundary);
        if (letter == 'B') return assertion(Kind::no_boundary);
        if (letter == 'A') return assertion(Kind::begin);  // Python's
        if (letter == 'Z' || letter == 'z') return assertion(Kind::end);
        if (is_class_letter(letter)) return add(CodePointSet::of_class(static_cast<char>(letter)));
        if (letter == 'p' || letter == 'P') {
            auto set = property();
            return set ? Index(add(std::move(*set))) : Index{};
        }
        if ((letter >= '1' && letter <= '9') || letter == 'k') {  // a back-reference
            if (letter == 'k') {
                const auto end = rest_.find('>');
                if (rest_.substr(0, 1) != "<" || end == std::string_view::npos) return {};
                rest_.remove_prefix(end + 1);
            } else {
                rest_.remove_prefix(std::min(rest_.find_first_not_of("0123456789"), rest_.size()));
            }
            tree_.exact = false;
            return add(Kind::nothing);
        }
        const auto c = escaped_character(letter);
        return c ? Index(add(single(*c))) : Index{};
    }

    Index bracket() {
        const bool negated = skip("^");
        CodePointSet set;
        // One member: a class of characters (nullopt inside) or a code point; false at an error.
        const auto member = [&](std::optional<char32_t>& point) {
            auto c = take_code_point(rest_);
            point = c;
            if (c != '\\') return true;
            if (rest_.empty()) return false;
            c = take_code_point(rest_);
            point.reset();
            if (is_class_letter(c)) {
                set.add(CodePointSet::of_class(static_cast<char>(c)));
                return true;
            }
            if (c == 'p' || c == 'P') {
                const auto all = property();
                if (all) set.add(*all);
                return all.has_value();
            }
            point = c == 'b' ? U'\b' : escaped_character(c);
            return point.has_value();
        };
        while (!rest_.empty() && rest_[0] != ']') {
            std::optional<char32_t> first, last;
            if (!member(first)) return {};
            if (rest_.size() < 2 || rest_[0] != '-' || rest_[1] == ']') {
                if (first) set.add(*first, *first);
                continue;
            }
            rest_.remove_prefix(1);
            if (!member(last)) return {};
            if (first && last && *first > *last) return {};
            if (first && last) {
                set.add(*first, *last);
            } else {  // "[\w-.]": the dash is itself
                set.add('-', '-');
                if (first) set.add(*first, *first);
                if (last) set.add(*last, *last);
            }
        }
        if (!skip("]")) return {};
        set.close(negated);
        return add(std::move(set));
    }

    std::string_view rest_;
    PatternTree tree_;
};

// One search: the states alive at each position, all at once.
struct Pattern::Search {
    const Pattern& pattern;
    const std::u32string& text;
    std::size_t steps;
    std::map<std::size_t, std::vector<bool>> ends;        // of a look-behind's matches
    std::unordered_map<std::uint64_t, bool> look_aheads;  // by instruction and position
    std::vector<std::size_t> pending;
    bool exhausted = false;

    // The states alive at one position.
    struct States {
        std::vector<std::size_t> list;
        std::vector<bool> has;
    };

    bool anywhere() { return run(0, 0, true, nullptr); }

    // Whether a match starts at `from` or, with `everywhere`, behind it. `matches`, if given,
    // collects all positions where a match ends.
    bool run(std::size_t start, std::size_t from, bool everywhere, std::vector<bool>* matches) {
        States now, next;
        now.has.resize(pattern.code_.size());
        next.has.resize(pattern.code_.size());
        bool found = false;
        steps -= std::min(steps, pattern.code_.size() / 8);
        const auto& first = pattern.code_[start];
        if (first.op == Op::check && first.kind == Kind::begin && !matches) everywhere = false;
        for (std::size_t at = from; at <= text.size() && !exhausted; ++at) {
            if (everywhere || at == from) found = enter(now, start, at) || found;
            if (found && !matches) return true;
            if (matches) (*matches)[at] = std::exchange(found, false);
            if (now.list.empty() && !everywhere) break;
            if (at == text.size()) break;
            for (const auto state : now.list) {
                const auto& instruction = pattern.code_[state];
                if (instruction.op == Op::set && pattern.sets_[instruction.x].contains(text[at]))
                    found = enter(next, pattern.after(state), at + 1) || found;
                if (exhausted) return false;
            }
            for (const auto state : now.list) now.has[state] = false;
            now.list.clear();
            std::swap(now, next);
        }
        return found && !exhausted;
    }

    // Adds a state and what it reaches without a character; true if that is a match.
    bool enter(States& states, std::size_t first, std::size_t at) {
        bool matched = false;
        const auto bottom = pending.size();  // a look-around enters again
        pending.push_back(first);
        while (pending.size() > bottom) {
            const auto state = pending.back();
            pending.pop_back();
            if (states.has[state]) continue;
            if (steps == 0) {
                exhausted = true;
                return false;
            }
            --steps;
            states.has[state] = true;
            states.list.push_back(state);
            const auto& instruction = pattern.code_[state];
            switch (instruction.op) {
                case Op::set:
                    break;
                case Op::match:
                    matched = true;
                    break;
                case Op::split:
                    pending.push_back(instruction.y);
                    pending.push_back(instruction.x);
                    break;
                case Op::jump:
                    pending.push_back(instruction.x);
                    break;
                case Op::check:
                    if (holds(instruction.kind, at)) pending.push_back(state + 1);
                    break;
                case Op::look:
                    if (look(state, at)) pending.push_back(instruction.x);
                    break;
            }
        }
        return matched;
    }

    bool holds(Kind kind, std::size_t at) const {
        if (kind == Kind::begin) return at == 0;
        if (kind == Kind::end) return at == text.size();
        const bool before = at > 0 && is_word(text[at - 1]);
        const bool after = at < text.size() && is_word(text[at]);
        return (before != after) == (kind == Kind::boundary);
    }

    bool look(std::size_t state, std::size_t at) {
        const auto& instruction = pattern.code_[state];
        const auto kind = instruction.kind;
        if (kind == Kind::behind || kind == Kind::not_behind) {
            auto found = ends.find(state);
            if (found == ends.end()) {
                std::vector<bool> matches(text.size() + 1);
                run(instruction.y, 0, true, &matches);
                found = ends.emplace(state, std::move(matches)).first;
            }
            return found->second[at] == (kind == Kind::behind);
        }
        const auto key = static_cast<std::uint64_t>(state) << 40 | at;
        auto found = look_aheads.find(key);
        if (found == look_aheads.end())
            found = look_aheads.emplace(key, run(instruction.y, at, false, nullptr)).first;
        return found->second == (kind == Kind::ahead);
    }
};

IPYBOX_DECL std::optional<Pattern> Pattern::compile(std::string_view text) {
    auto tree = PatternParser::parse(text);
    if (!tree || !tree->exact) return std::nullopt;
    return build(std::move(*tree), PatternTree::no_limit);
}

IPYBOX_DECL Pattern::Backtracking Pattern::backtracking(std::string_view text, std::size_t& steps) {
    auto tree = PatternParser::parse(text);
    if (!tree) return Backtracking::not_a_pattern;
    const auto pattern = build(std::move(*tree), 8);  // more repetitions are as bad as endless
    return pattern && !pattern->is_ambiguous(steps) ? Backtracking::bounded
                                                    : Backtracking::exponential;
}

IPYBOX_DECL std::optional<bool> Pattern::search(std::string_view text, std::size_t& steps) const {
    std::u32string points;
    while (!text.empty()) points += take_code_point(text);
    Search search{*this, points, steps, {}, {}, {}};
    const bool found = search.anywhere();
    steps = search.steps;
    return search.exhausted ? std::nullopt : std::optional<bool>(found);
}

IPYBOX_DECL std::optional<Pattern> Pattern::build(PatternTree tree, std::uint32_t max_count) {
    Pattern pattern;
    pattern.max_count_ = max_count;
    if (!pattern.emit(tree, tree.root)) return std::nullopt;
    pattern.put({Op::match});
    for (auto& instruction : pattern.code_)
        if (instruction.op == Op::split)
            for (auto* target : {&instruction.x, &instruction.y})
                while (pattern.code_[*target].op == Op::jump) *target = pattern.code_[*target].x;
    pattern.sets_ = std::move(tree.sets);
    return pattern;
}

IPYBOX_DECL std::size_t Pattern::put(Instruction instruction) {
    code_.push_back(instruction);
    return code_.size() - 1;
}

IPYBOX_DECL bool Pattern::emit(const PatternTree& tree, std::size_t index) {
    const auto& node = tree.nodes[index];
    if (code_.size() > max_size || ++emitted_ > 4 * max_size) return false;
    switch (node.kind) {
        case Kind::nothing:
            return true;
        case Kind::set:
            put({Op::set, Kind::set, node.set});
            return true;
        case Kind::sequence:
            return std::all_of(node.children.begin(), node.children.end(),
                               [&](auto child) { return emit(tree, child); });
        case Kind::choice: {
            std::vector<std::size_t> ends;
            for (std::size_t i = 0; i < node.children.size(); ++i) {
                const bool last = i + 1 == node.children.size();
                const auto fork = last ? 0 : put({Op::split});
                if (!emit(tree, node.children[i])) return false;
                if (last) break;
                ends.push_back(put({Op::jump}));
                code_[fork].x = fork + 1;
                code_[fork].y = code_.size();
            }
            for (const auto end : ends) code_[end].x = code_.size();
            return true;
        }
        case Kind::repeat:
            return emit_repeat(tree, node);
        case Kind::ahead:
        case Kind::not_ahead:
        case Kind::behind:
        case Kind::not_behind: {
            const auto look = put({Op::look, node.kind});
            if (!emit(tree, node.children[0])) return false;
            put({Op::match});
            code_[look].x = code_.size();
            code_[look].y = look + 1;
            return true;
        }
        default:
            put({Op::check, node.kind});
            return true;
    }
}

IPYBOX_DECL bool Pattern::emit_repeat(const PatternTree& tree, const PatternTree::Node& node) {
    const auto child = node.children[0];
    const bool endless = node.most > max_count_ || node.most == PatternTree::no_limit;
    const auto least = std::min(node.least, max_count_);
    for (std::uint32_t i = 0; i < least; ++i)
        if (!emit(tree, child)) return false;
    if (endless) {
        const auto fork = put({Op::split});
        if (!emit(tree, child)) return false;
        put({Op::jump, Kind::nothing, fork});
        code_[fork].x = fork + 1;
        code_[fork].y = code_.size();
        return true;
    }
    std::vector<std::size_t> forks;
    for (auto i = least; i < node.most; ++i) {
        forks.push_back(put({Op::split}));
        if (!emit(tree, child)) return false;
        code_[forks.back()].x = forks.back() + 1;
    }
    for (const auto fork : forks) code_[fork].y = code_.size();
    return true;
}

IPYBOX_DECL std::size_t Pattern::after(std::size_t state) const {
    return code_[state + 1].op == Op::jump ? code_[state + 1].x : state + 1;
}

IPYBOX_DECL bool Pattern::is_ambiguous(std::size_t& steps) const {
    const auto spend = [&steps](std::size_t amount) {
        steps -= std::min(steps, amount);
        return steps > 0;
    };
    if (!spend(emitted_ + code_.size())) return true;
    // The characters that may follow each character, and by how many ways (2: several).
    std::vector<std::size_t> states, number(code_.size());
    for (std::size_t i = 0; i < code_.size(); ++i)
        if (code_[i].op == Op::set) number[i] = states.size(), states.push_back(i);
    std::vector<std::map<std::size_t, int>> next(states.size());
    for (std::size_t i = 0; i < states.size(); ++i) {
        std::vector<std::size_t> pending{states[i] + 1};
        std::vector<unsigned char> visits(code_.size());
        if (!spend(code_.size() / 8 + 1)) return true;
        while (!pending.empty()) {
            const auto state = pending.back();
            pending.pop_back();
            if (++visits[state] > 2) continue;
            if (!spend(1)) return true;
            const auto& instruction = code_[state];
            if (instruction.op == Op::set)
                ++next[i][number[state]];
            else if (instruction.op == Op::split)
                pending.insert(pending.end(), {instruction.x, instruction.y});
            else if (instruction.op == Op::jump || instruction.op == Op::look)
                pending.push_back(instruction.x);
            else if (instruction.op == Op::check)
                pending.push_back(state + 1);
        }
    }
    // Two walks at once. Both start in the same state; if they part and can meet there again
    // on the same text, the text has two matches, and twice as many with each repetition.
    const auto count = states.size();
    if (count > 500 || !spend(count * count / 16)) return true;
    const auto id = [count](std::size_t a, std::size_t b) {
        return std::min(a, b) * count + std::max(a, b);
    };
    std::vector<std::size_t> order(count * count), low(count * count), component(count * count);
    std::size_t counter = 0, components = 0;
    std::vector<std::size_t> stack;
    struct Frame {
        std::size_t pair;
        std::vector<std::size_t> targets;
        std::size_t position = 0;
    };
    const auto targets = [&](std::size_t pair) {
        std::vector<std::size_t> found;
        for (const auto& [a, ways_a] : next[pair / count])
            for (const auto& [b, ways_b] : next[pair % count]) {
                if (!spend(1)) return found;
                const auto &x = sets_[code_[states[a]].x], &y = sets_[code_[states[b]].x];
                if (a == b || x.overlaps(y)) found.push_back(id(a, b));
            }
        return found;
    };
    for (std::size_t start = 0; start < count; ++start) {
        if (order[id(start, start)]) continue;
        std::vector<Frame> frames;
        const auto open = [&](std::size_t pair) {
            order[pair] = low[pair] = ++counter;
            stack.push_back(pair);
            frames.push_back({pair, targets(pair)});
        };
        for (open(id(start, start)); !frames.empty();) {
            if (!spend(1)) return true;
            auto& frame = frames.back();
            if (frame.position < frame.targets.size()) {
                const auto target = frame.targets[frame.position++];
                if (!order[target])
                    open(target);
                else if (!component[target])
                    low[frame.pair] = std::min(low[frame.pair], order[target]);
                continue;
            }
            const auto pair = frame.pair;
            frames.pop_back();
            if (!frames.empty())
                low[frames.back().pair] = std::min(low[frames.back().pair], low[pair]);
            if (low[pair] != order[pair]) continue;
            ++components;
            bool same = false, apart = false;
            for (std::size_t member = SIZE_MAX; member != pair;) {
                member = stack.back();
                stack.pop_back();
                component[member] = components;
                (member / count == member % count ? same : apart) = true;
            }
            if (same && apart) return true;
        }
    }
    for (std::size_t a = 0; a < count; ++a)
        for (const auto& [b, ways] : next[a])
            if (ways > 1 && component[id(a, a)] == component[id(b, b)]) return true;
    return false;
}

}  // namespace ipybox::detail
