// What is said of tools, for tool_search/tokens.py: reads {"servers": {NAME: [TOOL…]}, "requests":
// [TEXT…]} and writes {"stubs": {NAME: TEXT}, "described": {"NAME.TOOL": TEXT}, "found": [TEXT…]}.
#include <boost/json/parse.hpp>
#include <iostream>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/tools/tool_catalogue.hpp>
#include <iterator>

int main() try {
    namespace json = boost::json;
    using ipybox::tools::ToolCatalogue;
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    const json::value given = json::parse(text);
    std::vector<ToolCatalogue::Server> servers;
    for (const auto& [name, tools] : given.at("servers").as_object())
        servers.push_back({std::string(name), &tools.as_array()});
    ToolCatalogue catalogue(servers, {}, false);
    json::object stubs, described;
    json::array found;
    for (const auto& [name, tools] : servers) {
        stubs[name] = catalogue.stubs(name);
        for (const auto& tool : *tools) {
            const auto id = name + "." + std::string(tool.at("name").as_string());
            described[id] = catalogue.describe(id);
        }
    }
    for (const auto& request : given.at("requests").as_array())
        found.emplace_back(catalogue.search(std::string_view(request.as_string()), 5));
    json::object answer;
    answer["stubs"] = std::move(stubs);
    answer["described"] = std::move(described);
    answer["found"] = std::move(found);
    std::cout << ipybox::detail::write_json(json::value(std::move(answer))) << '\n';
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
