// Checks the arguments and chooses: the GPU's kernel, or ATen for the CPU.
#include "kernels.h"

namespace {

void check(const at::Tensor& x, const char* name) {
  TORCH_CHECK(x.is_floating_point(), name, " must be of a floating type");
  TORCH_CHECK(x.is_contiguous(), name, " must be contiguous");
}

void check_pair(const at::Tensor& x, const at::Tensor& y) {
  check(x, "the first tensor");
  check(y, "the second tensor");
  TORCH_CHECK(x.sizes() == y.sizes(), "the tensors must have one shape");
  TORCH_CHECK(x.scalar_type() == y.scalar_type(), "the tensors must have one type");
  TORCH_CHECK(x.device() == y.device(), "the tensors must be on one device");
}

at::Tensor saxpy(double a, const at::Tensor& x, const at::Tensor& y) {
  check_pair(x, y);
  return x.is_cuda() ? saxpy_cuda(a, x, y) : x * a + y;
}

at::Tensor relu(const at::Tensor& x) {
  check(x, "the tensor");
  return x.is_cuda() ? relu_cuda(x) : x.clamp_min(0);
}

at::Tensor relu_gradient(const at::Tensor& x, const at::Tensor& gradient) {
  check_pair(x, gradient);
  return x.is_cuda() ? relu_gradient_cuda(x, gradient) : gradient * x.gt(0);
}

at::Tensor row_sums(const at::Tensor& x) {
  check(x, "the tensor");
  TORCH_CHECK(x.dim() == 2, "the tensor must have rows and columns");
  return x.is_cuda() ? row_sums_cuda(x) : x.sum(1);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("saxpy", &saxpy, "a * x + y");
  m.def("relu", &relu, "max(x, 0)");
  m.def("relu_gradient", &relu_gradient, "the gradient where x is positive");
  m.def("row_sums", &row_sums, "the sum of each row");
}
