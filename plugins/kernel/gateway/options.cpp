#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <ipybox/config.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/hex.hpp>

namespace ipybox::gateway {
namespace {

ToolListener read_listener(const json::object& channel) {
    const auto text = [&](const char* name) { return std::string(channel.at(name).get_string()); };
    const auto refuse = [](const char* name, const std::string& why) {
        throw Error(errc::bad_config,
                    std::string("kernel_options/tool_channel/") + name + ": " + why);
    };
    ToolListener where;
    const auto listen = text("listen");
    const auto colon = std::min(listen.rfind(':'), listen.size());
    where.address = listen.substr(0, colon);
    if (where.address.starts_with('[') && where.address.ends_with(']'))
        where.address = where.address.substr(1, where.address.size() - 2);
    const auto number = listen.substr(std::min(colon + 1, listen.size()));
    const auto last_digit = number.data() + number.size();
    const auto [end, wrong] = std::from_chars(number.data(), last_digit, where.port);
    boost::system::error_code no_address;
    asio::ip::make_address(where.address, no_address);
    if (no_address || number.empty() || wrong != std::errc() || end != last_digit)
        refuse("listen", "must be ADDRESS:PORT with an IP address, such as 0.0.0.0:9443");
    const auto advertise = text("advertise");
    std::optional<HttpUrl> url;
    try {
        url = HttpUrl::parse(advertise);
    } catch (const Error& error) {
        refuse("advertise", error.detail());
    }
    if (!url->tls || url->path != "/" || !url->query.empty() || !url->credentials.empty())
        refuse("advertise", "must be https://NAME or https://NAME:PORT and nothing more");
    where.name = url->host;
    const auto last = advertise.find_last_of(":]");
    if (advertise[last] == ':' && last > advertise.find("//")) where.name_port = url->port;
    where.certificate = text("certificate");
    where.key = text("key");
    return where;
}

std::string base_url(const std::string& text) {
    const auto url = HttpUrl::parse(text);
    if (!url.query.empty())
        throw Error(errc::bad_config,
                    "kernel_options/url: leave out what follows \"?\"; a token goes to \"token\"");
    std::string base = url.origin() + url.path;
    while (base.ends_with('/')) base.pop_back();
    return base;
}

// With ${NAME} replaced from the environment.
json::value replaced(const json::value& value, const char* name) {
    Secrets secrets;
    const auto place = std::string("kernel_options/") + name;
    return substitute_variables(value, VariableSource(), place, secrets);
}

// A member that is text, replaced; empty where there is none.
std::string text_of(const json::object& config, const char* name) {
    const auto* value = config.if_contains(name);
    return value ? std::string(replaced(*value, name).get_string()) : std::string();
}

// How the host shows the server who it is.
void read_credentials(const json::object& config, Settings& settings) {
    if (const auto* given = config.if_contains("headers")) {
        const auto headers = replaced(*given, "headers");
        for (const auto& entry : headers.get_object())
            settings.headers.emplace_back(entry.key(), entry.value().get_string());
    }
    const auto token = settings.remote ? text_of(config, "token") : detail::random_hex(16);
    const auto user = text_of(config, "user");
    if (!user.empty() && !token.empty() && settings.remote)
        throw Error(errc::bad_config,
                    "kernel_options: give a token, or user and password, not both");
    if (!token.empty()) settings.headers.emplace_back("Authorization", "token " + token);
    if (user.empty()) return;
    const auto login = detail::encode_base64(user + ":" + text_of(config, "password"));
    settings.headers.emplace_back("Authorization", "Basic " + login);
}

}  // namespace

Settings read_settings(const json::object& config) {
    Settings settings;
    const auto seconds = [&](const char* name, Duration& to) {
        if (const auto* value = config.if_contains(name))
            to = std::chrono::duration_cast<Duration>(
                std::chrono::duration<double>(value->to_number<double>()));
    };
    settings.remote = config.contains("url");
    settings.url = settings.remote ? base_url(text_of(config, "url")) : "http://localhost";
    read_credentials(config, settings);
    settings.ca_file = text_of(config, "ca_file");
    settings.kernel_name = text_of(config, "kernel_name");
    settings.cwd = text_of(config, "cwd");
    if (const auto* env = config.if_contains("env")) settings.env = env->get_object();
    if (const auto* options = config.if_contains("gateway_options"))
        for (const auto& option : options->get_array())
            settings.gateway_options.emplace_back(option.get_string());
    seconds("ping_interval", settings.ping_interval);
    seconds("reconnect_timeout", settings.reconnect_timeout);
    seconds("retry_interval", settings.retry_interval);
    if (const auto* retries = config.if_contains("connect_retries"))
        settings.connect_retries = retries->to_number<int>();
    if (const auto* bytes = config.if_contains("max_message_bytes"))
        settings.limits.bytes = bytes->to_number<std::size_t>();
    settings.limits.decoded = std::max(settings.limits.decoded, 3 * settings.limits.bytes);
    if (const auto* channel = config.if_contains("tool_channel"))
        settings.tool_listener = read_listener(channel->get_object());
    if (settings.tool_listener && !settings.remote)
        throw Error(
            errc::bad_config,
            "kernel_options/tool_channel: needs \"url\"; kernels of this machine have a socket");
    return settings;
}

}  // namespace ipybox::gateway
