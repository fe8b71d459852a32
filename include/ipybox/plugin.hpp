#pragma once
// What a plugin exports: one constant descriptor, by one line.
#if !__has_include(<ipybox/detail/declarations.hpp>)
#error "incomplete headers: use those of an installation, or BUILD/include beside the source's"
#endif
#include <boost/config.hpp>
#include <boost/dll/alias.hpp>
#include <boost/version.hpp>
#include <functional>
#include <ipybox/approval_policy.hpp>
#include <ipybox/detail/declarations.hpp>
#include <ipybox/error.hpp>
#include <ipybox/kernel_backend.hpp>
#include <ipybox/log.hpp>
#include <ipybox/mcp_transport.hpp>
#include <ipybox/sandbox.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

// Grows by one whenever a door, Host or Plugin changes.
#ifndef IPYBOX_API_VERSION
#define IPYBOX_API_VERSION 11
#endif

#define IPYBOX_STRING_(x) #x
#define IPYBOX_STRING(x) IPYBOX_STRING_(x)

namespace ipybox {

// Everything that must agree between a program and a plugin that share C++ objects: the
// declarations that both see, whether bodies are compiled once or inline, and what lays them out
// otherwise. (NDEBUG is not of that: it only removes assertions.)
inline constexpr const char* abi_tag =
    "ipybox " IPYBOX_STRING(IPYBOX_API_VERSION) " " IPYBOX_DECLARATIONS ", Boost " BOOST_LIB_VERSION
                                                ", " BOOST_COMPILER
#ifdef _LIBCPP_VERSION
                                                ", libc++"
#endif
#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
                                                ", old-strings"
#endif
#ifdef _GLIBCXX_DEBUG
                                                ", glibcxx-debug"
#endif
#ifdef BOOST_ASIO_ENABLE_HANDLER_TRACKING
                                                ", handler-tracking"
#endif
#ifdef BOOST_ASIO_USE_TS_EXECUTOR_AS_DEFAULT
                                                ", ts-executor"
#endif
#ifdef BOOST_ASIO_DISABLE_THREADS
                                                ", no-threads"
#endif
#ifdef BOOST_ASIO_DISABLE_EPOLL
                                                ", no-epoll"
#endif
#ifdef BOOST_ASIO_HAS_IO_URING
                                                ", io-uring"
#endif
#ifdef __SANITIZE_ADDRESS__
                                                ", address-sanitizer"
#endif
    ;
// One object per process when symbols are shared as they must be; otherwise neither are Asio's.
inline char process_anchor = 0;

struct Host;

// Makes objects of other plugins, for one that wraps them. Each throws what PluginRegistry::make()
// throws. The host must outlive what they return.
class OtherPlugins {
public:
    // A sandbox, guarded as every one is.
    virtual std::unique_ptr<Sandbox> sandbox(std::string_view name, Host& host,
                                             const json::object& config) = 0;
    // A kernel backend.
    virtual std::unique_ptr<KernelBackend> kernel(std::string_view name, Host& host,
                                                  const json::object& config) = 0;
    // A transport; config: the server's parameters that are its plugin's.
    virtual std::unique_ptr<McpTransport> transport(std::string_view name, Host& host,
                                                    const json::object& config) = 0;
    // An approval policy.
    virtual std::unique_ptr<ApprovalPolicy> approval(std::string_view name, Host& host,
                                                     const json::object& config) = 0;

protected:
    ~OtherPlugins() = default;
};

// What the program lends to a plugin; outlives everything the plugin makes.
struct Host {
    asio::any_io_executor executor;
    Logger logger;
    // Puts a call before the people or programs that can answer; denies when there are none.
    std::function<awaitable<Decision>(ToolCall)> ask = nullptr;
    // Sends a person (or a headless test) to an authorization page and returns the address they
    // were redirected to, if they hand it over; runs until cancelled when that reaches this machine
    // without them. An empty address, or no function: nobody is there.
    std::function<awaitable<std::string>(std::string url)> browse = nullptr;
    // Never null within a factory, which alone uses it.
    OtherPlugins* plugins = nullptr;
};

// Called with a configuration that fits config_schema. May throw Error, of any code.
template <class Interface>
using Factory = std::unique_ptr<Interface> (*)(Host& host, const json::object& config);

// What a plugin says of itself. Constant: it is read before any code of the plugin runs.
struct Plugin {
    // Read and checked before anything else: these two stay first forever.
    const char* abi = abi_tag;
    const void* anchor = &process_anchor;

    std::string_view name;           // as in the configuration and the file name
    std::string_view summary;        // one line for `ipybox plugins`
    std::string_view config_schema;  // JSON Schema of the factory's config
    std::variant<Factory<Sandbox>, Factory<KernelBackend>, Factory<McpTransport>,
                 Factory<ApprovalPolicy>>
        make;
};

// Only its value for each interface is used; the words are those of the folders.
constexpr std::string_view kind_of(const Plugin& plugin) noexcept {
    constexpr std::string_view kinds[] = {"sandbox", "kernel", "transport", "approval"};
    return kinds[plugin.make.index()];
}

}  // namespace ipybox

// IPYBOX_PLUGIN(name, descriptor): the one exported line, at namespace scope outside any
// namespace. The ELF section carries the API version: a file built for another version shows no
// plugin, and nothing in it runs to find that out.
#define IPYBOX_SECTION_PREFIX "ipybox"
#define IPYBOX_SECTION IPYBOX_SECTION_PREFIX IPYBOX_STRING(IPYBOX_API_VERSION)
#define IPYBOX_PLUGIN_(name, descriptor, version) \
    BOOST_DLL_ALIAS_SECTIONED(descriptor, ipybox_plugin_##name, ipybox##version)
#define IPYBOX_PLUGIN_V_(name, descriptor, version) IPYBOX_PLUGIN_(name, descriptor, version)
#define IPYBOX_PLUGIN(name, descriptor) IPYBOX_PLUGIN_V_(name, descriptor, IPYBOX_API_VERSION)
