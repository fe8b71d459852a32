// Makes a plugin of $IPYBOX_PLUGIN_PATH and says which there are: the program is linked as plugins
// need it.
#include <boost/asio/io_context.hpp>
#include <iostream>
#include <ipybox/registry.hpp>

int main() try {
    boost::asio::io_context context;
    ipybox::Host host{context.get_executor(), {}, {}};
    auto registry = ipybox::PluginRegistry::standard();
    registry.make<ipybox::ApprovalPolicy>("deny", host, {});
    for (const auto& entry : registry.list()) std::cout << entry.plugin->name << '\n';
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
