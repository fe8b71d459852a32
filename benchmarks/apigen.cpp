#include "apigen.hpp"

#include <stdlib.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ipybox/tools/apigen.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "required.hpp"

namespace {
using bench::required;
namespace fs = std::filesystem;
namespace json = boost::json;

std::string read(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

double milliseconds(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// The tools of real servers: not those that were written to be hard.
json::array real_tools(const fs::path& corpus) {
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(corpus, none)) {
        const auto name = entry.path().filename().string();
        if (entry.path().extension() == ".json" && !name.starts_with("hardcases") &&
            !name.starts_with("jsts") && !name.starts_with("synth"))
            files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    json::array tools;
    for (const auto& path : files)
        for (auto& tool : ipybox::parse_tools(read(path))) tools.push_back(std::move(tool));
    return tools;
}

struct Scratch {
    fs::path path;
    Scratch() {
        std::string name = "/tmp/ipybox-bench-XXXXXX";
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path = name;
    }
    ~Scratch() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
};

json::object ask_peer(const std::string& python, const fs::path& tools) {
    const auto command =
        python + " " IPYBOX_BENCHMARKS "/datamodel_codegen_peer.py " + tools.string();
    FILE* output = ::popen(command.c_str(), "r");
    if (output == nullptr) throw std::runtime_error("cannot start " + python);
    std::string line;
    for (int c = 0; (c = std::fgetc(output)) != EOF && c != '\n';) line += static_cast<char>(c);
    if (::pclose(output) != 0) throw std::runtime_error("the datamodel-code-generator peer died");
    return json::parse(line).as_object();
}
}  // namespace

void measure_apigen(int rounds) {
    const fs::path corpus = required("IPYBOX_BENCH_CORPUS");
    const auto python = required("IPYBOX_BENCH_CODEGEN_PYTHON");
    const auto tools = real_tools(corpus);
    if (tools.size() < 1000) {
        std::printf("\ngeneration of typed APIs: skipped, no corpora in %s\n", corpus.c_str());
        return;
    }
    const Scratch scratch;
    std::vector<double> ours, formatted, plain;
    std::string version;
    std::size_t failed = 0, asked = 0;
    for (int round = 0; round < rounds; ++round) {
        json::array batch;  // other tools in each round, from all servers
        for (std::size_t i = static_cast<std::size_t>(round); i < tools.size(); i += 60)
            batch.push_back(tools[i]);
        const auto count = static_cast<double>(batch.size());
        const auto file = scratch.path / "tools.json";
        std::ofstream(file) << json::serialize(batch);
        ours.push_back(milliseconds([&] {
                           for (const auto& tool : batch)
                               ipybox::generate_package("bench", json::array{tool});
                       }) /
                       count);
        const auto peer = ask_peer(python, file);
        formatted.push_back(peer.at("formatted").to_number<double>() / 1e6 / count);
        plain.push_back(peer.at("plain").to_number<double>() / 1e6 / count);
        version = peer.at("version").as_string();
        failed += peer.at("failed").to_number<std::size_t>();
        asked += batch.size();
    }
    const auto all = milliseconds([&] {
        for (const auto& tool : tools) ipybox::generate_package("bench", json::array{tool});
    });

    json::array server;
    std::set<std::string> names;
    for (const auto& tool : tools)
        if (server.size() < 500 && names.insert(std::string(tool.at("name").as_string())).second)
            server.push_back(tool);
    const auto text = json::serialize(server);
    std::vector<double> whole, unchanged;
    for (int round = 0; round < rounds; ++round) {
        const auto package = [&] {
            return ipybox::generate_package("bench", ipybox::parse_tools(text));
        };
        const auto root = scratch.path / std::to_string(round);
        whole.push_back(milliseconds([&] { ipybox::write_package(root, "bench", package()); }));
        unchanged.push_back(milliseconds([&] { ipybox::write_package(root, "bench", package()); }));
    }

    std::printf("\ngeneration of typed APIs, %zu tools in %d rounds, medians\n%-46s %12s %9s\n",
                asked, rounds, "", "ms a tool", "x ipybox");
    const auto row = [&](const std::string& who, double value) {
        std::printf("%-46s %12.3f %9.1f\n", who.c_str(), value, value / median(ours));
    };
    row("ipybox", median(ours));
    row("datamodel-code-generator " + version, median(formatted));
    row("datamodel-code-generator, no formatters", median(plain));
    std::printf("(the peer failed on %zu tools)\n", failed);
    std::printf("all %zu tools of the corpora, one by one: %.3f ms a tool\n", tools.size(),
                all / static_cast<double>(tools.size()));
    std::printf("a server of 500 tools, from JSON to files: %.0f ms; again, unchanged: %.0f ms\n",
                median(whole), median(unchanged));
}
