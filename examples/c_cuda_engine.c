/* An engine in C on a GPU: a batch of sequences in one paged cache, a policy from text, and steps that are captured once in a
 * CUDA graph and replayed. */
#include <cuda_runtime_api.h>
#include <kvpolicy.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { layers = 2, q_heads = 4, kv_heads = 2, dim = 64, page = 16, sequences = 2, pages_of = 64, prompt = 900, steps = 20 };
enum { row = kv_heads * page * dim, of_layer = sequences * pages_of * row, of_step = sequences * q_heads * dim };

static kvpolicy_dtype const float32 = {2, 32, 1}, int32 = {0, 32, 1};

static void must(kvpolicy_status status) {
  if (status == KVPOLICY_OK) return;
  fprintf(stderr, "c_cuda_engine: %s\n", kvpolicy_message());
  exit(1);
}
static void fine(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "c_cuda_engine: %s\n", cudaGetErrorString(error));
  exit(1);
}

/* Device memory with what is on the host. */
static void* on_device(void const* from, size_t bytes) {
  void* made = NULL;
  fine(cudaMalloc(&made, bytes));
  fine(cudaMemcpy(made, from, bytes, cudaMemcpyHostToDevice));
  return made;
}
static void* noise(size_t count) {
  static uint32_t seed = 7;
  float* const values = malloc(count * sizeof *values);
  if (values == NULL) exit(1);
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
  void* const made = on_device(values, count * sizeof *values);
  free(values);
  return made;
}
static kvpolicy_tensor tensor(void* data, kvpolicy_dtype type, int32_t axes, int64_t const* shape) {
  kvpolicy_tensor const made = {data, {2, 0}, axes, type, shape, NULL, 0};
  return made;
}

int main(int count, char** arguments) {
  char const* const text = count > 1 ? arguments[1] : "quest:tokens=256,page=16";
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    puts("no CUDA device here: compiled and linked, not run");
    return 0;
  }
  /* What the engine has: keys and values [layers][pages][kv_heads][page][dim], tables, queries and outputs. */
  float const scale = 1.0f / sqrtf((float)dim);
  float *keys = noise(layers * of_layer), *values = noise(layers * of_layer), *queries = noise(of_step), *out = noise(of_step);
  int32_t table[sequences * pages_of];
  for (int32_t i = 0; i < sequences * pages_of; ++i) table[i] = i * 37 % (sequences * pages_of); /* pages lie anywhere */
  int32_t* const tables = on_device(table, sizeof table);
  cudaStream_t stream = NULL;
  fine(cudaStreamCreate(&stream));

  kvpolicy_policy* policy = NULL;
  kvpolicy_decoder* decoder = NULL;
  must(kvpolicy_policy_parse(text, NULL, 0, &policy));
  kvpolicy_shape const shape = {layers, q_heads, kv_heads, dim, pages_of * page, KVPOLICY_F32, 0};
  kvpolicy_decoder_options const options = {.sequences = sequences, .stream = stream};
  must(kvpolicy_decoder_start(policy, &shape, &options, &decoder));
  int64_t const of_rows[] = {sequences * pages_of, kv_heads, page, dim}, of_tables[] = {sequences, pages_of};
  int64_t const of_heads[] = {sequences, q_heads, dim};
  for (int64_t l = 0; l < layers; ++l) {
    kvpolicy_tensor const k = tensor(keys + l * of_layer, float32, 4, of_rows),
                          v = tensor(values + l * of_layer, float32, 4, of_rows);
    kvpolicy_tensor const t = tensor(tables, int32, 2, of_tables);
    must(kvpolicy_decoder_bind(decoder, l, &k, &v, &t));
  }
  kvpolicy_prompt const given = {0};
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t l = 0; l < layers; ++l) must(kvpolicy_decoder_prefill(decoder, s, -1, l, prompt, &given));
  }

  /* A first step loads the kernels, the second is captured; an engine's own kernels are between these calls. */
  kvpolicy_tensor const q = tensor(queries, float32, 3, of_heads), to = tensor(out, float32, 3, of_heads);
  kvpolicy_device_lists lists;
  cudaGraph_t graph = NULL;
  cudaGraphExec_t step = NULL;
  int32_t tokens[sequences];
  for (int i = 1; i <= steps; ++i) {
    for (int s = 0; s < sequences; ++s) tokens[s] = prompt + i;
    must(kvpolicy_decoder_plan(decoder, sequences, tokens, NULL, NULL, NULL));
    if (i == 2) fine(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int64_t l = 0; l < layers && i <= 2; ++l) {
      must(kvpolicy_decoder_choose(decoder, l, &q, scale, NULL, &lists));
      must(kvpolicy_decoder_attend(decoder, l, &q, scale, &to));
      must(kvpolicy_decoder_renew(decoder, l, &q, scale));
    }
    if (i == 2) {
      fine(cudaStreamEndCapture(stream, &graph));
      fine(cudaGraphInstantiate(&step, graph, 0));
    }
    if (i >= 2) fine(cudaGraphLaunch(step, stream));
  }

  /* What the last layer's first list names, behind which its tail follows. */
  int32_t named = 0, tail = (int32_t)lists.tail_of_all;
  fine(cudaStreamSynchronize(stream));
  if (lists.named != NULL) fine(cudaMemcpy(&named, lists.named, sizeof named, cudaMemcpyDeviceToHost));
  if (lists.tail != NULL) fine(cudaMemcpy(&tail, lists.tail, sizeof tail, cudaMemcpyDeviceToHost));
  printf("%s: %d of %d tokens after %d steps, %d of them replays of one graph\n", text,
         (int)(named + (tail < tokens[0] ? tokens[0] - tail : 0)), (int)tokens[0], (int)steps, (int)steps - 1);

  kvpolicy_decoder_free(decoder);
  kvpolicy_policy_free(policy);
  fine(cudaGraphExecDestroy(step));
  fine(cudaGraphDestroy(graph));
  void* const held[] = {keys, values, queries, out, tables};
  for (int i = 0; i < 5; ++i) fine(cudaFree(held[i]));
  fine(cudaStreamDestroy(stream));
  return 0;
}
