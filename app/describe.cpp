// ipybox --describe: what --help says of all commands, for programs.
#include <boost/json/array.hpp>
#include <iostream>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/detail/json_number.hpp>

#include "commands.hpp"

namespace ipybox::app {

namespace {

// Named ones are commands, the others groups of options.
bool is_group(const CLI::App* one) { return one->get_name().empty(); }

// The words in "TEXT:{ask,allow}" or "{ask,allow}".
boost::json::array choices_in(const std::string& type) {
    boost::json::array choices;
    const auto begin = type.find('{');
    const auto end = type.rfind('}');
    if (begin == type.npos || end == type.npos || end < begin) return choices;
    for (const auto& word : CLI::detail::split(type.substr(begin + 1, end - begin - 1), ','))
        choices.emplace_back(word);
    return choices;
}

boost::json::object describe_option(const CLI::Option& option, const std::string& group) {
    boost::json::object told;
    boost::json::array names;
    for (const auto& name : option.get_snames()) names.emplace_back("-" + name);
    for (const auto& name : option.get_lnames()) names.emplace_back("--" + name);
    told["names"] = std::move(names);
    if (option.get_positional()) told["positional"] = option.get_name(true);
    told["description"] = option.get_description();
    told["group"] = group;
    told["required"] = option.get_required();
    told["repeatable"] = option.get_expected_max() > 1;
    if (option.get_items_expected_max() > 0) {
        const auto type = option.get_type_name();
        told["value"] = type;
        told["value_optional"] = option.get_expected_min() == 0;
        told["choices"] = choices_in(type);
        told["default"] = option.get_default_str();
    }
    return told;
}

void describe_options(const CLI::App& command, const std::string& group,
                      boost::json::array& options) {
    for (const auto* option : command.get_options())
        if (!option->get_group().empty()) options.push_back(describe_option(*option, group));
    for (const auto* one : command.get_subcommands(is_group))
        describe_options(*one, one->get_description(), options);
}

boost::json::object describe(const CLI::App& command) {
    boost::json::object told;
    told["name"] = command.get_name();
    told["description"] = command.get_description();
    const auto formatter = std::dynamic_pointer_cast<CLI::Formatter>(command.get_formatter());
    told["usage"] = formatter->make_usage(&command, command.get_name());
    told["footer"] = command.get_footer();
    boost::json::array options;
    describe_options(command, "", options);
    told["options"] = std::move(options);
    boost::json::array commands;
    for (const auto* one :
         command.get_subcommands([](const CLI::App* named) { return !is_group(named); }))
        if (!one->get_group().empty()) commands.push_back(describe(*one));
    told["commands"] = std::move(commands);
    return told;
}

}  // namespace

void print_description(const CLI::App& app) {
    auto told = describe(app);
    told["version"] = detail::build_version;
    std::cout << detail::write_json(told) << '\n';
}

}  // namespace ipybox::app
