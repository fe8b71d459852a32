#pragma once
// Regular expressions of JSON Schema (ECMA-262), matched without backtracking: the work is bounded
// whatever pattern a server sends and whatever text meets it.
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace ipybox::detail {

// A set of code points.
class CodePointSet {
public:
    struct Range {
        char32_t first, last;
    };

    void add(char32_t first, char32_t last) { ranges_.push_back({first, last}); }
    void add(const CodePointSet& other);
    // To be called once all is added.
    void close(bool negated);

    // Of a set that is closed:
    bool contains(char32_t c) const { return c < ascii_.size() ? ascii_[c] : find(c); }
    bool overlaps(const CodePointSet& other) const;

    // letter: d, w, s or an upper-case complement.
    static CodePointSet of_class(char letter);

private:
    bool find(char32_t c) const;

    std::vector<Range> ranges_;
    std::bitset<128> ascii_;
};

// A parsed pattern. Python's additions are understood as far as servers written in it use them.
struct PatternTree {
    enum class Kind : unsigned char {
        nothing,
        set,
        sequence,
        choice,
        repeat,
        begin,
        end,
        boundary,
        no_boundary,
        ahead,
        not_ahead,
        behind,
        not_behind
    };
    static constexpr std::uint32_t no_limit = UINT32_MAX;

    struct Node {
        Kind kind = Kind::nothing;
        std::vector<std::size_t> children;
        std::size_t set = 0;  // index into sets
        std::uint32_t least = 0, most = 0;
    };

    std::vector<Node> nodes;
    std::vector<CodePointSet> sets;
    std::size_t root = 0;
    // False when it uses what only backtracking or Unicode tables can decide (back-references,
    // \p{…}, flags); the tree then holds something wider.
    bool exact = true;
};

// A pattern as a nondeterministic automaton, simulated state by state.
class Pattern {
public:
    // Patterns that would need more states are not compiled.
    static constexpr std::size_t max_size = 5'000;

    // nullopt for what is no pattern, is too large, or needs back-references, Unicode properties
    // or flags.
    static std::optional<Pattern> compile(std::string_view text);

    // What backtracking, such as Python's, can make of it.
    enum class Backtracking { bounded, exponential, not_a_pattern };

    // Looks for two ways to match the same text inside a repetition. `steps` bounds the work and
    // is reduced by what was spent; a pattern too large for what is left counts as exponential.
    static Backtracking backtracking(std::string_view text, std::size_t& steps);

    // Whether the text, UTF-8, has a match somewhere. Nullopt when that takes more than `steps`,
    // which is reduced by what was spent.
    std::optional<bool> search(std::string_view text, std::size_t& steps) const;

    // States of the automaton.
    std::size_t size() const { return code_.size(); }

private:
    using Kind = PatternTree::Kind;
    enum class Op : unsigned char { set, split, jump, check, look, match };
    struct Instruction {
        Op op;
        Kind kind = Kind::nothing;  // of a check or look
        std::size_t x = 0, y = 0;   // targets; for a set its index, for a look the body
    };

    static std::optional<Pattern> build(PatternTree tree, std::uint32_t max_count);

    std::size_t put(Instruction instruction);

    // False when the program becomes too large. As deep as the tree, which is bounded.
    bool emit(const PatternTree& tree, std::size_t index);

    bool emit_repeat(const PatternTree& tree, const PatternTree::Node& node);

    std::size_t after(std::size_t state) const;

    struct Search;

    // Whether, inside a cycle, the same text can be matched in two ways.
    bool is_ambiguous(std::size_t& steps) const;

    std::vector<Instruction> code_;
    std::vector<CodePointSet> sets_;
    std::uint32_t max_count_ = PatternTree::no_limit;
    std::size_t emitted_ = 0;
};

}  // namespace ipybox::detail

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/detail/impl/pattern.ipp>
#endif
