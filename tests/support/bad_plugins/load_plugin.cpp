// Loads the plugin file named on the command line in a process that has loaded no other.
// Prints the refusal; exit code 0 if there was one. Linked with and without its symbols exported.
// With --statics, says instead whether Asio's statics are "shared" with it or "apart".
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/dll/shared_library.hpp>
#include <cstdio>
#include <cstring>
#include <ipybox/registry.hpp>

#include "asio_statics.hpp"

namespace {

bool shares_statics(const char* file) {
    const boost::dll::shared_library plugin(file);
    boost::asio::io_context context;
    AsioStatics here{}, there{};
    boost::asio::post(context, [&] {
        here = asio_statics();
        plugin.get<void(AsioStatics&)>("sample_asio_statics")(there);
    });
    context.run();
    for (const auto* address : here)
        if (!address) return false;
    return here == there;
}

}  // namespace

int main(int count, char** arguments) {
    if (count == 3 && std::strcmp(arguments[1], "--statics") == 0) {
        std::puts(shares_statics(arguments[2]) ? "shared" : "apart");
        return 0;
    }
    if (count != 2) return 2;
    ipybox::PluginRegistry registry;
    try {
        registry.load(arguments[1]);
    } catch (const ipybox::Error& error) {
        std::puts(error.what());
        return 0;
    }
    return 1;
}
