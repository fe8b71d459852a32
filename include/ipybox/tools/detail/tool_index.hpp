#pragma once
// Finds the tools that plain requests mean: BM25 over names, descriptions and schemas, with stems,
// synonyms and phrases of English. The same tools and request give the same answer everywhere.
#include <algorithm>
#include <array>
#include <boost/json/object.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/tools/detail/query_shapes.hpp>
#include <ipybox/tools/detail/search_terms.hpp>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ipybox::detail {

// What is known of a tool; nothing of it is kept.
struct SearchedTool {
    std::string_view server, name, description;
    const json::object* schema = nullptr;  // of its arguments
};

class ToolIndex {
public:
    // What counts, whoever wrote it: tools; words of all tools, of which each gets the same part
    // and of a long text its beginning; different words; of a request bytes, lines and work.
    static constexpr std::size_t max_tools = 50'000, max_words = 800'000, max_terms = 200'000;
    static constexpr std::size_t max_query = 4000, max_line = 1000, max_lines = 8;

    ToolIndex() = default;
    ToolIndex(ToolIndex&&) = default;
    ToolIndex& operator=(ToolIndex&&) = default;
    explicit ToolIndex(const std::vector<SearchedTool>& tools) {
        const auto count = std::min(tools.size(), max_tools);
        const auto room = std::min<std::size_t>(2000, max_words / std::max<std::size_t>(count, 1));
        std::vector<Document> documents(count);
        // What matters most comes first, in case that there are too many words.
        for (std::size_t i = 0; i < count; ++i) add_names(documents[i], tools[i], room);
        for (std::size_t i = 0; i < count; ++i) add_texts(documents[i], tools[i], room);
        kinds_.reserve(count);
        for (std::size_t i = 0; i < count; ++i) kinds_.push_back(kind_of(tools[i].name));
        make_postings(documents);
        for (const auto& [term, id] : ids_) by_name_.emplace_back(term, id);
        std::sort(by_name_.begin(), by_name_.end());
    }

    // The numbers of the tools that fit, the best first. query: one wording a line; a tool has the
    // best rank that one of them gives it. accept(number) says which may be among them.
    template <class Accept>
    std::vector<std::size_t> search(std::string_view query, std::size_t limit,
                                    const Accept& accept) const {
        query = query.substr(0, utf8_border(query, max_query));
        std::vector<std::vector<std::size_t>> answers;
        while (!query.empty() && answers.size() < max_lines) {
            const auto end = std::min(query.find('\n'), query.size());
            const auto line = query.substr(0, utf8_border(query, std::min(end, max_line)));
            answers.push_back(search_line(line, limit, accept));
            query.remove_prefix(std::min(end + 1, query.size()));
        }
        std::vector<std::size_t> best;
        std::set<std::size_t> seen;
        for (std::size_t rank = 0; rank < limit; ++rank)
            for (const auto& answer : answers)
                if (rank < answer.size() && best.size() < limit && seen.insert(answer[rank]).second)
                    best.push_back(answer[rank]);
        return best;
    }
    std::vector<std::size_t> search(std::string_view query, std::size_t limit) const {
        return search(query, limit, [](std::size_t) { return true; });
    }

private:
    using Kind = SearchTables::Kind;
    enum Field : std::size_t { name, server, first, rest, params, values, fields };
    using Id = std::uint32_t;

    static constexpr std::array<double, fields> field_weights{2.2, 1.8, 1.5, 0.65, 0.4, 0.4};
    static constexpr double saturation = 1.05, length_part = 0.68;  // k1 and b of BM25
    static constexpr double of_synonym = 0.8, of_phrase = 0.85, of_prefix = 0.6;
    static constexpr double of_little = 0.6;  // a word that says little
    static constexpr double union_part = 0.45, coverage_part = 0.45, of_whole_name = 2.8;
    static constexpr double of_named_server = 1.6, of_same_kind = 1.15, of_other_kind = 0.85;
    static constexpr std::size_t max_text = 1500, max_first = 300, max_own_words = 24;
    static constexpr std::size_t max_query_words = 100, max_prefixes = 100, max_work = 1'000'000;

    struct Document {
        std::array<std::vector<Id>, fields> words;
        std::size_t size = 0;
    };
    struct Posting {
        Id document : 30, in_name : 1, of_server : 1;
        float frequency;
    };
    // Terms with what each is worth, of which one is wanted.
    struct Unit {
        double weight;
        std::map<Id, double> terms;
    };
    struct NameHit {
        std::size_t document;
        Id term;
        double weight;
    };

    // ---- what is known of tools ----

    Id id_of(std::string&& term) {
        if (ids_.size() >= max_terms && !ids_.count(term)) return max_terms;
        return ids_.try_emplace(std::move(term), static_cast<Id>(ids_.size())).first->second;
    }
    void add(Document& document, Field field, std::string_view text, std::size_t room) {
        for (auto& stem : stems_of(text, room - std::min(room, document.size))) {
            ++document.size;
            if (const auto id = id_of(std::move(stem)); id != max_terms)
                document.words[field].push_back(id);
        }
    }

    void add_names(Document& document, const SearchedTool& tool, std::size_t room) {
        const auto own_room = std::min(room / 2 + 1, max_own_words);
        add(document, server, tool.server.substr(0, max_first), own_room);
        document.size = 0;
        add(document, name, tool.name.substr(0, max_first), own_room);
        // The server's name counts once.
        const auto& servers = document.words[server];
        auto own = document.words[name];
        std::erase_if(own, [&](Id id) {
            return std::find(servers.begin(), servers.end(), id) != servers.end();
        });
        if (!own.empty()) document.words[name] = std::move(own);
        document.size = document.words[name].size() + servers.size();
    }

    void add_texts(Document& document, const SearchedTool& tool, std::size_t room) {
        const auto [head, tail] = sentences(tool.description);
        add(document, first, head.substr(0, max_first), room);
        add(document, rest, tail.substr(0, max_text), room);
        std::string names, texts;
        if (tool.schema) schema_texts(*tool.schema, names, texts);
        add(document, params, names, room);
        add(document, values, texts, room);
    }

    // The first sentence, and what follows; blanks are one each.
    static std::pair<std::string, std::string> sentences(std::string_view description) {
        std::string text;
        for (const char c : description.substr(0, 4 * max_text)) {
            if (c != ' ' && !(c >= '\t' && c <= '\r'))
                text += c;
            else if (!text.empty() && text.back() != ' ')
                text += ' ';
        }
        for (std::size_t i = 1; i < text.size(); ++i) {
            const bool ended = text[i - 1] == '.' || text[i - 1] == '!' || text[i - 1] == '?';
            if (text[i] == ' ' && (ended || text.compare(i, 6, " Args:") == 0))
                return {text.substr(0, i), text.substr(i)};
        }
        return {text, {}};
    }

    static void schema_texts(const json::object& schema, std::string& names, std::string& texts) {
        std::vector<std::pair<const json::object*, int>> open{{&schema, 0}};
        const auto full = [&] { return names.size() > max_text && texts.size() > max_text; };
        for (int nodes = 0; !open.empty() && nodes < 1000 && !full(); ++nodes) {
            const auto [node, depth] = open.back();
            open.pop_back();
            if (const auto* properties = object_of(*node, "properties"))
                for (const auto& [wire, value] : *properties) {
                    if (names.size() <= max_text)
                        names += std::string(wire.substr(0, max_first)) + ' ';
                    const auto* inner = value.if_object();
                    if (!inner) continue;
                    if (texts.size() <= max_text)
                        texts += std::string(string_of(*inner, "description").substr(0, 200)) + ' ';
                    if (depth < 3 && open.size() < 1000) open.emplace_back(inner, depth + 1);
                }
            if (const auto* items = object_of(*node, "items"); items && depth < 3)
                open.emplace_back(items, depth + 1);
            const auto* list = node->if_contains("enum");
            if (!list || !list->is_array()) continue;
            int taken = 0;
            for (const auto& item : list->get_array()) {
                if (++taken > 20 || texts.size() > max_text) break;
                if (is_text(item)) texts += std::string(view_of(item).substr(0, max_first)) + ' ';
            }
        }
        texts.resize(std::min(texts.size(), max_text));
    }
    static std::string_view view_of(const json::value& text) {
        return {text.get_string().data(), text.get_string().size()};
    }

    static Kind kind_of(std::string_view name) {
        for (const auto& stem : stems_of(name.substr(0, max_first), max_own_words))
            if (const auto kind = SearchTables::get().kind_of_name(stem); kind != Kind::none)
                return kind;
        return Kind::none;
    }

    void make_postings(const std::vector<Document>& documents) {
        std::array<double, fields> mean{};
        for (std::size_t field = 0; field < fields; ++field) {
            for (const auto& document : documents)
                mean[field] += static_cast<double>(document.words[field].size());
            if (!documents.empty()) mean[field] /= static_cast<double>(documents.size());
            if (mean[field] == 0) mean[field] = 1;
        }
        postings_.resize(ids_.size());
        names_.resize(documents.size());
        for (std::size_t i = 0; i < documents.size(); ++i) {
            std::map<Id, double> frequency;
            const auto& words = documents[i].words;
            for (std::size_t field = 0; field < fields; ++field) {
                const auto length = static_cast<double>(words[field].size());
                const double norm = 1 - length_part + length_part * length / mean[field];
                for (const auto id : words[field]) frequency[id] += field_weights[field] / norm;
            }
            for (const auto& [id, value] : frequency) {
                Posting posting{};
                posting.document = static_cast<Id>(i) & 0x3FFFFFFF;
                posting.in_name = has(words[name], id);
                posting.of_server = has(words[server], id);
                posting.frequency = static_cast<float>(value);
                postings_[id].push_back(posting);
                if (posting.in_name) names_[i].push_back(id);
            }
        }
    }
    static bool has(const std::vector<Id>& ids, Id id) {
        return std::find(ids.begin(), ids.end(), id) != ids.end();
    }

    // ---- requests ----

    double rarity(std::size_t documents) const {
        if (documents == 0) return 0;
        const auto have = static_cast<double>(documents);
        const auto all = static_cast<double>(kinds_.size());
        return std::log(1 + (all - have + 0.5) / (have + 0.5));
    }

    const Id* find_term(std::string_view term) const {
        const auto found = ids_.find(std::string(term));
        return found == ids_.end() ? nullptr : &found->second;
    }
    void want(Unit& unit, std::string_view term, double weight) const {
        if (const auto* id = find_term(term)) {
            auto& known = unit.terms.try_emplace(*id, 0.0).first->second;
            known = std::max(known, weight);
        }
    }

    // A word of the request: itself, what begins in the same way (mongo, mongodb), its synonyms.
    Unit unit_of(const std::string& stem) const {
        const auto& tables = SearchTables::get();
        Unit unit{tables.says_little(stem) ? of_little : 1.0, {}};
        want(unit, stem, 1.0);
        const auto part = [](std::size_t a, std::size_t b) {
            return static_cast<double>(a) / static_cast<double>(b);
        };
        if (stem.size() >= 4) {
            auto at = std::lower_bound(
                by_name_.begin(), by_name_.end(), stem,
                [](const auto& known, const std::string& text) { return known.first < text; });
            std::size_t taken = 0;
            for (; at != by_name_.end() && at->first.starts_with(stem) && taken < max_prefixes;
                 ++at) {
                const auto& other = at->first;
                if (other == stem || part(stem.size(), other.size()) < 0.6) continue;
                want(unit, other, of_prefix * part(stem.size(), other.size()));
                ++taken;
            }
            for (std::size_t size = 4; size < stem.size(); ++size)
                if (part(size, stem.size()) >= 0.7)
                    want(unit, std::string_view(stem).substr(0, size),
                         of_prefix * part(size, stem.size()));
        }
        for (const auto& [other, strong] : tables.synonyms(stem))
            want(unit, other, strong ? 1.0 : of_synonym);
        return unit;
    }

    // Where the words of a phrase are that begins at `at`; empty if it is not there.
    static std::vector<std::size_t> places_of(const SearchTables::Phrase& phrase,
                                              const std::vector<std::string>& words,
                                              const std::vector<std::string>& stems, std::size_t at,
                                              const std::vector<bool>& used) {
        std::vector<std::size_t> places;
        for (std::size_t k = 0; k < phrase.words.size(); ++k) {
            if (phrase.words[k] == "…") {
                std::size_t gap = 1;
                while (gap <= 4 &&
                       !(at + gap < stems.size() && stems[at + gap] == phrase.stems[k + 1]))
                    ++gap;
                if (gap > 4) return {};
                at += gap;
                continue;
            }
            if (at >= words.size() || used[at] ||
                (words[at] != phrase.words[k] && stems[at] != phrase.stems[k]))
                return {};
            places.push_back(at++);
        }
        return places;
    }

    static std::vector<std::string> stems_for(const std::vector<std::string>& words) {
        std::vector<std::string> stems;
        for (const auto& word : words) stems.push_back(stem_of(word));
        return stems;
    }

    std::vector<Unit> units_of(std::string_view query) const {
        const auto& tables = SearchTables::get();
        std::vector<Unit> units;
        const auto add = [&](Unit unit) {
            if (!unit.terms.empty()) units.push_back(std::move(unit));
        };
        const QueryShapes shapes{std::string(query)};
        for (const auto meaning : shapes.found()) {
            Unit unit{1.0, {}};
            for (const auto word : written_words(meaning, 10))
                want(unit, stem_of(std::string(word)), 1.0);
            add(std::move(unit));
        }
        std::vector<std::string> words;
        for (const auto word : written_words(shapes.rest(), max_query_words)) {
            const auto parts = parts_of_word(word);
            auto whole = lower_word(word);
            if (parts.size() > 1 && !find_term(stem_of(whole)))
                for (const auto part : parts) words.push_back(lower_word(part));
            else
                words.push_back(std::move(whole));
        }
        if (words.size() > max_query_words) words.resize(max_query_words);
        const auto stems = stems_for(words);
        std::vector<bool> used(words.size());
        for (std::size_t i = 0; i < words.size(); ++i) {
            std::vector<const SearchTables::Phrase*> phrases;
            for (const auto& phrase : tables.phrases(stems[i])) phrases.push_back(&phrase);
            std::stable_sort(phrases.begin(), phrases.end(), [&](const auto* a, const auto* b) {
                return std::pair{b->words.size(), a->words[0] != words[i]} <
                       std::pair{a->words.size(), b->words[0] != words[i]};
            });
            for (const auto* phrase : phrases) {
                const auto places = places_of(*phrase, words, stems, i, used);
                if (places.empty()) continue;
                for (const auto place : places) used[place] = true;
                for (const auto& meaning : phrase->meaning) {
                    Unit unit{1.0, {}};
                    for (const auto& stem : meaning) want(unit, stem, of_phrase);
                    add(std::move(unit));
                }
            }
        }
        for (std::size_t i = 0; i < words.size(); ++i)
            if (!used[i] && !tables.says_nothing(words[i])) add(unit_of(stems[i]));
        return units;
    }

    // What a request wants, by the first of its first words that tells.
    static Kind kind_wanted(std::string_view query) {
        const auto& tables = SearchTables::get();
        std::vector<std::string> words;
        for (const auto word : written_words(query, 12)) words.push_back(lower_word(word));
        const auto stems = stems_for(words);
        const std::vector<bool> used(words.size());
        for (std::size_t i = 0; i < words.size() && i < 3; ++i) {
            for (const auto& phrase : tables.phrases(stems[i])) {
                if (phrase.words.size() < 2 || places_of(phrase, words, stems, i, used).empty())
                    continue;
                for (const auto& stem : phrase.meaning.front())
                    if (const auto kind = tables.kind_of_name(stem); kind != Kind::none)
                        return kind;
            }
            for (const auto& word : {words[i], stems[i]})
                if (const auto kind = tables.kind_of_request(word); kind != Kind::none) return kind;
        }
        return Kind::none;
    }

    template <class Accept>
    std::vector<std::size_t> search_line(std::string_view query, std::size_t limit,
                                         const Accept& accept) const {
        const auto count = kinds_.size();
        std::vector<double> scores(count), covered(count), best(count);
        std::vector<std::size_t> touched;
        std::vector<NameHit> hits;
        double total = 0;
        std::size_t work = 0;
        for (const auto& unit : units_of(query)) {
            for (const auto& [term, weight] : unit.terms) work += postings_[term].size();
            if (work > max_work) break;
            touched.clear();
            for (const auto& [term, weight] : unit.terms)
                for (const auto& posting : postings_[term])
                    if (best[posting.document] == 0)
                        best[posting.document] = -1, touched.push_back(posting.document);
            const double common = rarity(touched.size());
            double top = 0;
            for (const auto& [term, weight] : unit.terms) {
                const auto& all = postings_[term];
                const double value = unit.weight * weight *
                                     (union_part * common + (1 - union_part) * rarity(all.size()));
                if (value <= 0) continue;
                top = std::max(top, value);
                for (const auto& posting : all) {
                    const double frequency = posting.frequency;
                    double score = value * frequency * (saturation + 1) / (frequency + saturation);
                    if (posting.of_server && weight > 0.75) score *= of_named_server;
                    best[posting.document] = std::max(best[posting.document], score);
                    if (posting.in_name) hits.push_back({posting.document, term, weight});
                }
            }
            total += top;
            for (const auto document : touched) {
                if (best[document] > 0) {
                    scores[document] += best[document];
                    covered[document] += top;
                }
                best[document] = 0;
            }
        }
        add_whole_names(hits, scores);
        return ranked(query, limit, accept, scores, covered, total);
    }

    // A tool all of whose name is asked for is meant.
    void add_whole_names(std::vector<NameHit>& hits, std::vector<double>& scores) const {
        std::sort(hits.begin(), hits.end(), [](const NameHit& a, const NameHit& b) {
            return std::tuple{a.document, a.term, -a.weight} <
                   std::tuple{b.document, b.term, -b.weight};
        });
        for (std::size_t i = 0; i < hits.size();) {
            const auto document = hits[i].document;
            double all = 0, asked = 0;
            for (const auto term : names_[document]) all += rarity(postings_[term].size());
            for (auto before = std::numeric_limits<Id>::max();
                 i < hits.size() && hits[i].document == document; ++i)
                if (std::exchange(before, hits[i].term) != hits[i].term)
                    asked += hits[i].weight * rarity(postings_[hits[i].term].size());
            if (all > 0) scores[document] += of_whole_name * asked / all;
        }
    }

    template <class Accept>
    std::vector<std::size_t> ranked(std::string_view query, std::size_t limit, const Accept& accept,
                                    std::vector<double>& scores, const std::vector<double>& covered,
                                    double total) const {
        const auto wanted = kind_wanted(query);
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < scores.size(); ++i) {
            if (scores[i] <= 0 || !accept(i)) continue;
            order.push_back(i);
            const auto kind = kinds_[i];
            if (wanted != Kind::none && kind != Kind::none) {
                const auto either = [&](Kind one) { return kind == one || wanted == one; };
                scores[i] *= kind == wanted                               ? of_same_kind
                             : either(Kind::read) || either(Kind::remove) ? of_other_kind
                                                                          : 1.0;
            }
            scores[i] *= 1 - coverage_part + coverage_part * covered[i] / (total > 0 ? total : 1);
        }
        const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(limit, order.size()));
        std::partial_sort(order.begin(), end, order.end(), [&](std::size_t a, std::size_t b) {
            return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
        });
        order.erase(end, order.end());
        return order;
    }

    std::unordered_map<std::string, Id> ids_;
    std::vector<std::pair<std::string_view, Id>> by_name_;  // views of ids_' keys
    std::vector<std::vector<Posting>> postings_;            // by term
    std::vector<std::vector<Id>> names_;                    // the terms of each tool's own name
    std::vector<Kind> kinds_;
};

}  // namespace ipybox::detail
