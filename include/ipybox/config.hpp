#pragma once
// What a person configures: MCP servers, variables and secrets.
#include <cstring>
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/detail/client_config.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <ipybox/log.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// Reads a whole file of at most `limit` bytes. Throws Error: bad_argument (it cannot be read, or is
// longer; names the path).
std::string read_text_file(const std::filesystem::path& path, std::size_t limit = 16u << 20);

// Whether numbers become what Boost.JSON has, or keep all digits, see detail/json_number.hpp.
enum class Numbers { rounded, exact };

// Parses JSON. Throws Error: bad_config (it is none; names `what`, the line and the column).
json::value parse_json(std::string_view text, const std::string& what,
                       Numbers numbers = Numbers::rounded);

using Variables = std::map<std::string, std::string, std::less<>>;

// Parses the lines of a .env file: NAME=value, optional "export", single quotes literal, double
// quotes with \n \" \\ escapes, # comments. Throws Error: bad_config (a line is malformed; names
// it).
Variables parse_env(std::string_view text, const std::string& what);

// What the .env file of a directory says, if there is one. Code may have worked there: only a
// regular file of at most 1 MiB is read, and no link followed; of anything else the log says why it
// was not. Throws Error: bad_config (a line is malformed; names it).
Variables read_env_file(const std::filesystem::path& directory, const Logger& logger);

namespace config {
// Whether a name such as "apiKey", "X-Auth-Token" or "db_password" announces a secret.
bool names_a_secret(std::string_view name);

// Whether a value is a path that exists, or a URL that carries neither a login nor a query: code
// works with those, and they let nobody in.
bool is_plain_place(std::string_view value);
}  // namespace config

// The values that nobody may see, and the one way to hide them.
class Secrets {
public:
    // value: hidden in errors and in what is logged; in_results: also in what tools return to the
    // code. Values shorter than six characters are not kept: hiding "1" would hide everything.
    void add(std::string value, bool in_results = false);
    // The text with [hidden] in the place of each secret.
    std::string hide(std::string text) const { return hidden(std::move(text), values_); }
    // The same in every text and name of a result for the code, of those secrets that it must not
    // get.
    void hide_in_result(json::value& result) const;
    // The same, of an object.
    void hide_in_result(json::object& result) const;

private:
    static void add_to(std::vector<std::string>& values, const std::string& value);
    static std::string hidden(std::string text, const std::vector<std::string>& values);
    bool holds(std::string_view text) const;

    std::vector<std::string> values_, in_results_;
};

// Looks ${NAME} up: what ipybox itself defines, the environment of this process, then `variables`.
class VariableSource {
public:
    // variables: what a .env file says. defined: what nothing else can set, such as WORKSPACE; no
    // secrets.
    explicit VariableSource(Variables variables = {}, Variables defined = {})
        : variables_(std::move(variables)), defined_(std::move(defined)) {}
    // The variable's value; absent when it is set nowhere.
    std::optional<std::string> find(const std::string& name) const;
    // Whether messages must not show the variable's value.
    bool is_secret(const std::string& name) const { return !defined_.contains(name); }

private:
    Variables variables_;
    Variables defined_;
};

namespace config {
// ipybox's directory below `variable`, else below `usual` of HOME; empty when neither is set.
std::filesystem::path own_directory(const char* variable, const char* usual);
// Where this person's settings are, and what ipybox keeps for them; existing or not.
inline std::filesystem::path config_directory() {
    return own_directory("XDG_CONFIG_HOME", ".config");
}
inline std::filesystem::path data_directory() {
    return own_directory("XDG_DATA_HOME", ".local/share");
}
// What ipybox remembers of its sessions. Root's does not follow HOME, which sudo may leave
// another's.
std::filesystem::path state_directory();
// All that no code may see or change; a place may be empty.
inline std::vector<std::filesystem::path> own_directories() {
    return {config_directory(), data_directory(), state_directory(),
            own_directory("XDG_STATE_HOME", ".local/state"), "/var/lib/ipybox"};
}

std::string substitute_text(std::string_view text, const VariableSource& source,
                            const std::string& where, Secrets& secrets);
}  // namespace config

// Replaces ${NAME} and ${NAME:-default} in every string of `value`; the values put in are added
// to `secrets`, but for those that ipybox itself defines. Throws Error: bad_config (a variable is
// not set; names it and `where`).
json::value substitute_variables(const json::value& value, const VariableSource& source,
                                 const std::string& where, Secrets& secrets);

// The plugin that reaches a server: params.type, else by URL (sse when its path ends in the segment
// "sse"), else stdio.
std::string transport_of(const json::object& params);
// Whether that is one of ipybox's own, whose parameters check_server_params() knows: those of
// another are what its config_schema says, but for "type" and "sandbox", which are the host's.
bool has_own_transport(const json::object& params);

// Checks a server's "auth": how ipybox gets tokens for it. Throws Error: bad_config (a field is
// unknown or malformed; names it).
void check_auth(const json::value& value, const std::string& where);

// Checks one server's parameters as MCP clients write them and drops what only those clients
// use. Those of another plugin's transport stay, for its schema to judge. Throws Error: bad_config
// (a field is unknown or malformed; names it). `where` is its place for messages. notices: gets a
// line for each field that does something for another client and nothing here; may be null.
json::object check_server_params(const json::value& value, const std::string& where,
                                 std::vector<std::string>* notices = nullptr);

// The servers of a configuration's "mcpServers" block (or, as VS Code has it, "servers"), without
// the disabled ones, by the names of their Python packages: their "alias", or their own with "_"
// for what no package's may have. Throws Error: bad_config (a field is unknown or malformed; names
// it). notices: see check_server_params().
std::map<std::string, json::object> read_mcp_servers(const json::value& config,
                                                     const std::string& what,
                                                     std::vector<std::string>* notices = nullptr);

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/impl/config.ipp>
#endif
