// What the constructors and checks refuse, and what to_graph builds.
#include "instances.h"
#include "memsched/model/lifetimes.h"
#include "memsched/support/errors.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <stdexcept>

using namespace memsched;
using namespace memsched::testing;

namespace {

constexpr Bytes most = exact_bytes;
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// The message of the std::invalid_argument that the call throws; "" when it throws nothing.
std::string refusal(const std::function<void()>& call) {
    try {
        call();
    } catch (const std::invalid_argument& error) {
        return error.what();
    }
    return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

ChainColumns two_stages() {
    ChainColumns c;
    c.forward_time = {1, 2};
    c.backward_time = {2, 3};
    c.activation = {4, 6, 5};
    c.gradient = {0, 6, 5};
    c.saved = {9, 5};
    return c;
}

ChainGiven with_saved() {
    ChainGiven given;
    given.saved = true;
    return given;
}

Graph small_graph(const std::function<void(GraphData&)>& change = [](GraphData&) {}) {
    GraphData g;
    g.tensors = {{"x", 4, Role::input}, {"a", 3, Role::activation}, {"d", 2, Role::gradient}};
    Op f, b;
    f.name = "F";
    f.reads = {0};
    f.writes = {1};
    f.choices = {{"default", 1, 0}};
    b.name = "B";
    b.phase = Phase::backward;
    b.reads = {1};
    b.writes = {2};
    b.choices = {{"slow", 3, 0}, {"fast", 2, 5}};
    g.ops = {f, b};
    change(g);
    return Graph(std::move(g));
}

} // namespace

TEST_CASE("checked_add adds up to the limits and throws beyond them") {
    const auto sizes = [] { return std::string("the sizes"); };
    CHECK(checked_add(most - 1, 1, sizes) == most);
    for (const Bytes more : {Bytes{1}, most, std::numeric_limits<Bytes>::max()}) {
        const std::string why = refusal([&] { checked_add(most, more, sizes); });
        CHECK(contains(why, "the sizes add up to more than 2^53 bytes"));
        CHECK_THROWS_AS(checked_add(more, most, sizes), std::invalid_argument);
    }
}

TEST_CASE("a transfer over a free link takes the latency alone") {
    CHECK(transfer_time(8, 2, 0.5) == 4.5);
    CHECK(transfer_time(most, infinity, 0.25) == 0.25);
}

TEST_CASE("a chain fills its defaults") {
    ChainColumns c = two_stages();
    c.forward_overhead = {1, 2};
    ChainGiven given = with_saved();
    given.forward_overhead = true;
    const Chain chain(c, given);
    CHECK(chain.columns().transient_overhead == std::vector<Bytes>{4, 2}); // saved - activation + forward_overhead
    CHECK(chain.columns().backward_overhead == std::vector<Bytes>{0, 0});
    CHECK(chain.columns().names == std::vector<std::string>{"stage 1", "stage 2"});
    c.saved.clear();
    CHECK(Chain(c, {}).columns().saved == std::vector<Bytes>{6, 5});
}

TEST_CASE("a chain refuses bad columns and names field and index") {
    const auto refused = [](const std::function<void(ChainColumns&)>& change, const std::string& part) {
        ChainColumns c = two_stages();
        change(c);
        const std::string message = refusal([&] { Chain(c, with_saved()); });
        INFO(message);
        CHECK(contains(message, part));
    };
    refused([](ChainColumns& c) { c.forward_time.clear(); }, "forward_time");
    refused([](ChainColumns& c) { c.backward_time.push_back(1); }, "backward_time");
    refused([](ChainColumns& c) { c.activation.pop_back(); }, "activation");
    refused([](ChainColumns& c) { c.gradient.push_back(1); }, "gradient");
    refused([](ChainColumns& c) { c.saved.pop_back(); }, "saved");
    refused([](ChainColumns& c) { c.forward_time[1] = not_a_number; }, "forward_time[1]");
    refused([](ChainColumns& c) { c.backward_time[0] = infinity; }, "backward_time[0]");
    refused([](ChainColumns& c) { c.backward_time[0] = -1; }, "backward_time[0]");
    refused([](ChainColumns& c) { c.activation[2] = -1; }, "activation[2]");
    refused([](ChainColumns& c) { c.gradient[0] = -7; }, "gradient[0] is -7");
    refused([](ChainColumns& c) { c.saved[0] = 5; }, "saved[0] is 5, less than the stage's output activation[1] = 6");
    refused([](ChainColumns& c) { c.resident = -1; }, "resident");
    refused([](ChainColumns& c) { c.activation[0] = most; }, "activation[1]");
    refused([](ChainColumns& c) { c.saved[0] = c.saved[1] = most / 2; }, "saved[1]");
}

TEST_CASE("the pieces of a chain add up to its tapes") {
    ChainColumns c = two_stages();
    ChainGiven given = with_saved();
    given.pieces = true;
    c.pieces = {{1, 2}, {}};
    CHECK(Chain(c, given).columns().pieces.size() == 2);
    c.pieces = {{1, 1}, {}};
    CHECK(contains(refusal([&] { Chain(c, given); }), "pieces[0] adds up to 2"));
    c.pieces = {{4, -1}, {}};
    CHECK(contains(refusal([&] { Chain(c, given); }), "pieces[0][1]"));
    c.pieces = {{3}};
    CHECK(contains(refusal([&] { Chain(c, given); }), "pieces"));
}

TEST_CASE("a device refuses what is not a device") {
    const auto refused = [](const std::function<void(Device&)>& change, const std::string& field) {
        Device d = device_of(10, 2);
        change(d);
        CHECK(contains(refusal([&] { check_device(d); }), field));
    };
    CHECK_NOTHROW(check_device(device_of(1, 0)));
    CHECK_NOTHROW(check_device(device_of(1, infinity)));
    refused([](Device& d) { d.memory = 0; }, "memory");
    refused([](Device& d) { d.d2h = -1; }, "d2h");
    refused([](Device& d) { d.h2d = not_a_number; }, "h2d");
    refused([](Device& d) { d.latency = infinity; }, "latency");
    refused([](Device& d) { d.host_memory = -1; }, "host_memory");
}

TEST_CASE("a graph refuses what is not in single assignment form or out of order") {
    const auto refused = [](const std::function<void(GraphData&)>& change, const std::string& part) {
        const std::string message = refusal([&] { small_graph(change); });
        INFO(message);
        CHECK(contains(message, part));
    };
    CHECK(small_graph().writer(0) == -1);
    CHECK(small_graph().writer(2) == 1);
    refused([](GraphData& g) { g.tensors[1].name = "x"; }, "unique");
    refused([](GraphData& g) { g.tensors[1].name = ""; }, "tensors[1]");
    refused([](GraphData& g) { g.tensors[1].bytes = -1; }, "'a'");
    refused([](GraphData& g) { g.tensors[0].bytes = most; }, "'a'");
    refused([](GraphData& g) { g.ops[1].name = "F"; }, "ops[1]");
    refused([](GraphData& g) { g.ops[1].choices.clear(); }, "choices");
    refused([](GraphData& g) { g.ops[1].choices[1].alg = "slow"; }, "twice");
    refused([](GraphData& g) { g.ops[1].choices[0].time = not_a_number; }, "time");
    refused([](GraphData& g) { g.ops[1].choices[1].workspace = most; }, "workspace");
    refused([](GraphData& g) { g.ops[0].skip_workspace = -1; }, "skip_workspace");
    refused([](GraphData& g) { g.ops[0].reads = {7}; }, "unknown");
    refused([](GraphData& g) { g.ops[0].reads = {2}; }, "the ops form a cycle");
    refused([](GraphData& g) { g.ops[1].reads = {1, 1}; }, "twice");
    refused([](GraphData& g) { g.ops[0].writes = {0}; }, "input");
    refused([](GraphData& g) { g.ops[1].writes = {2, 1}; }, "already");
    refused([](GraphData& g) { g.ops[1].writes = {2, 2}; }, "already");
    refused([](GraphData& g) { g.ops[1].tape = {1}; }, "tape");
    refused([](GraphData& g) { g.ops[1].writes = {}; }, "no writer");
    refused([](GraphData& g) { g.ops.clear(); }, "ops is empty");
    refused([](GraphData& g) { g.batch = 0; }, "batch");
    refused([](GraphData& g) { g.resident = -1; }, "resident");
}

TEST_CASE("to_graph in bytes cuts activations and inputs, never gradients, and loses no byte") {
    Dice dice(1);
    for (int round = 0; round < 200; ++round) {
        const Chain chain = random_chain(dice, dice.roll(1, 6));
        const Graph whole = to_graph(chain);
        const Bytes chunk = dice.roll(1, 5);
        const Graph cut = to_graph(chain, {Chunk::Kind::bytes, chunk});
        REQUIRE(whole.ops().size() == cut.ops().size());
        Bytes whole_bytes = 0, cut_bytes = 0;
        for (const Tensor& t : whole.tensors()) {
            whole_bytes += t.bytes;
        }
        for (const Tensor& t : cut.tensors()) {
            cut_bytes += t.bytes;
            CHECK((t.role == Role::gradient || t.bytes <= chunk));
        }
        CHECK(whole_bytes == cut_bytes);
        for (std::size_t i = 0; i < whole.ops().size(); ++i) {
            CHECK(whole.ops()[i].name == cut.ops()[i].name);
            const auto touched = [i](const Graph& g) {
                Bytes bytes = 0;
                for (const TensorId t : g.ops()[i].reads) {
                    bytes += g.tensor(t).bytes;
                }
                for (const TensorId t : g.ops()[i].writes) {
                    bytes += g.tensor(t).bytes;
                }
                return bytes;
            };
            CHECK(touched(whole) == touched(cut));
        }
        CHECK(min_memory(whole) == min_memory(cut));
        CHECK(peak_memory(whole) == peak_memory(cut));
    }
}

TEST_CASE("to_graph by storage cuts tapes as the pieces say") {
    ChainColumns c = two_stages();
    c.pieces = {{1, 0, 2}, {}};
    ChainGiven given = with_saved();
    CHECK_THROWS_AS(to_graph(Chain(c, given), {Chunk::Kind::bytes, 0}), std::invalid_argument);
    CHECK_THROWS_AS(to_graph(Chain(two_stages(), given), {Chunk::Kind::storage, 0}), std::invalid_argument);
    given.pieces = true;
    const Graph graph = to_graph(Chain(c, given), {Chunk::Kind::storage, 0});
    std::vector<std::string> names;
    for (const Tensor& t : graph.tensors()) {
        names.push_back(t.name);
    }
    // A storage and a tape of no bytes are left out.
    CHECK(names == std::vector<std::string>{"a0", "a1", "tape1/0", "tape1/1", "a2", "d2", "d1", "d0"});
    CHECK(graph.ops()[0].tape == std::vector<TensorId>{2, 3});
}

TEST_CASE("a chain is not cut into more than 100,000 pieces") {
    ChainColumns c = two_stages();
    c.activation[0] = 20'000'000;
    CHECK(contains(refusal([&] { to_graph(Chain(c, with_saved()), {Chunk::Kind::bytes, 1}); }), "100,000"));
}
