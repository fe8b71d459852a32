#pragma once
// What JSON of strangers costs in memory: text grows fifty-fold when it is parsed, if it is `[0,0,…]`.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse_options.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <boost/system/errc.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <string_view>

namespace ipybox::detail {

namespace json = boost::json;

// A byte of text takes at most so many in memory, short of some for the value itself.
inline constexpr std::size_t largest_growth = 256;

// What the JSON of one message may take, unless somebody sets another limit.
inline constexpr std::size_t default_max_decoded = std::size_t{96} << 20;

// What an allocation takes besides its contents.
inline constexpr std::size_t per_allocation = 32;

// What a message does that is refused for it.
inline constexpr std::string_view costs_too_much = "takes more memory than is left for messages";

// At most what json::parse() takes for `text` at any moment, the value it returns included; sound
// for a text that is no JSON as well, because the parser stops where the two would disagree.
inline std::size_t decoded_size(std::string_view text) noexcept {
    // The value, its place on the parser's stack and that of a stack that grows.
    constexpr std::size_t per_value = 4 * sizeof(json::value);
    // What an allocation has besides its contents, and a short one at least.
    constexpr std::size_t per_block = 64;
    std::size_t size = per_value, escaped = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        switch (text[at]) {
            case '"': {
                const std::size_t start = at + 1;
                for (bool ended = false; !ended;) {
                    at = std::min(text.find('"', at + 1), text.size());
                    std::size_t slashes = 0;
                    while (at - slashes > start && text[at - slashes - 1] == '\\') ++slashes;
                    ended = at == text.size() || slashes % 2 == 0;
                }
                const auto string = text.substr(start, at - start);
                size += string.size() + per_block;
                // Put together in a place of its own, which grows as well.
                if (string.find('\\') != string.npos) escaped = std::max(escaped, string.size());
                break;
            }
            case ':': size += 2 * per_value; break;
            case ',': size += per_value; break;
            case '[':
            case '{': size += per_value + per_block; break;
            default: break;
        }
    }
    return size + 2 * escaped;
}

// The memory that a value holds, but for unused room in it.
inline std::size_t memory_size(const json::value& value) noexcept;
inline std::size_t memory_size(const json::object& object) noexcept {
    std::size_t size = sizeof(json::value) + per_allocation;
    for (const auto& member : object)
        size += sizeof(json::key_value_pair) + member.key().size() + per_allocation + memory_size(member.value());
    return size;
}
inline std::size_t memory_size(const json::value& value) noexcept {
    if (const auto* object = value.if_object()) return memory_size(*object);
    std::size_t size = sizeof(json::value);
    if (const auto* text = value.if_string()) {
        if (text->size() > sizeof(json::value)) size += text->size() + per_allocation;
    } else if (const auto* array = value.if_array()) {
        if (!array->empty()) size += per_allocation;
        for (const auto& element : *array) size += memory_size(element);
    }
    return size;
}

// json::parse() for a text of strangers. depth: levels at most. memory: bytes it may take, see
// decoded_size(); boost::system::errc::not_enough_memory when that is too little.
inline json::value parse_within(std::string_view text, std::size_t depth, std::size_t memory,
                                boost::system::error_code& error) {
    // So few bytes cannot grow beyond it.
    if (text.size() > memory / largest_growth && decoded_size(text) > memory) {
        error = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
        return json::value();
    }
    json::parse_options options;
    options.max_depth = depth;
    return json::parse(text, error, {}, options);
}

}  // namespace ipybox::detail
