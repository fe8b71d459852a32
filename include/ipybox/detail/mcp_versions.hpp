#pragma once
// The versions of MCP that ipybox speaks: here and nowhere else.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace ipybox::detail {

// Versions are dates: as texts they compare by age.
inline constexpr std::string_view mcp_2024_11_05 = "2024-11-05";
inline constexpr std::string_view mcp_2025_03_26 = "2025-03-26";
inline constexpr std::string_view mcp_2025_06_18 = "2025-06-18";
inline constexpr std::string_view mcp_2025_11_25 = "2025-11-25";

// Stateless: each request says its version.
inline constexpr std::string_view mcp_modern_version = "2026-07-28";
// Opened by initialize. Newest first: a client offers the first and accepts any.
inline constexpr std::array<std::string_view, 4> mcp_legacy_versions = {
    mcp_2025_11_25, mcp_2025_06_18, mcp_2025_03_26, mcp_2024_11_05};

inline bool is_legacy_version(std::string_view version) noexcept {
    return std::find(mcp_legacy_versions.begin(), mcp_legacy_versions.end(), version) !=
           mcp_legacy_versions.end();
}
// A date later than the last legacy version: whoever says it expects modern answers.
inline bool names_modern_version(std::string_view version) noexcept {
    return version.size() == 10 && version[4] == '-' && version > mcp_legacy_versions.front();
}

// All of them for an error text, newest first: "a, b and c".
inline std::string mcp_versions_text() {
    std::string text(mcp_modern_version);
    for (const auto version : mcp_legacy_versions) {
        text += version == mcp_legacy_versions.back() ? " and " : ", ";
        text += version;
    }
    return text;
}

}  // namespace ipybox::detail
