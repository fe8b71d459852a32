#pragma once
// How packages are installed on this distribution, for messages that name the remedy.
#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::sandbox_kit {

// The command that installs `package` where `release` is the text of /etc/os-release.
inline std::string install_command(std::string_view package, const std::string& release) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 8> managers{{
        {"debian", "apt-get install"},
        {"ubuntu", "apt-get install"},
        {"fedora", "dnf install"},
        {"rhel", "dnf install"},
        {"suse", "zypper install"},
        {"opensuse", "zypper install"},
        {"arch", "pacman -S"},
        {"alpine", "apk add"},
    }};
    // ID names the distribution, ID_LIKE those that it was made from, in quotes when there are two.
    std::string words;
    for (std::size_t at = 0; at < release.size();) {
        const auto end = std::min(release.find('\n', at), release.size());
        const std::string_view line(release.data() + at, end - at);
        for (const std::string_view key : {"ID=", "ID_LIKE="})
            if (line.starts_with(key)) words += " " + std::string(line.substr(key.size()));
        at = end + 1;
    }
    for (char& c : words)
        if (c == '"' || c == '\'') c = ' ';
    words += ' ';
    for (const auto& [name, command] : managers)
        if (words.find(" " + std::string(name) + " ") != std::string::npos)
            return std::string(command) + " " + std::string(package);
    return "install " + std::string(package) + " with the package manager of your system";
}

inline std::string install_command(std::string_view package) {
    std::ifstream file("/etc/os-release");
    std::string text(8192, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
    return install_command(package, text);
}

}  // namespace ipybox::sandbox_kit
