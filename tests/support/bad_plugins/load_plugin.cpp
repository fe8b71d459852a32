// Loads the plugin file named on the command line in a process that has loaded no other.
// Prints the refusal; exit code 0 if there was one. Linked with and without its symbols exported.
#include <cstdio>
#include <ipybox/registry.hpp>

int main(int count, char** arguments) {
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
