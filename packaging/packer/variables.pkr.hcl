# What can be chosen. Only the packages have no default: "make package" makes them.

variable "region" {
  description = "Where the images are made, and where they are then."
  type        = string
  default     = "us-west-2"
}

variable "architecture" {
  description = "The processors that the images are for: amd64 or arm64."
  type        = string
  default     = "amd64"

  validation {
    condition     = contains(["amd64", "arm64"], var.architecture)
    error_message = "The architecture must be amd64 or arm64."
  }
}

variable "kubernetes_version" {
  description = "The minor version of the cluster, as the images that EKS publishes for it are named."
  type        = string
  default     = "1.34"
}

variable "ubuntu_release" {
  description = "The release of Ubuntu that Canonical's EKS image is made of, by its code name and number."
  type        = string
  default     = "noble-24.04"
}

variable "rpm" {
  description = "The package for Amazon Linux, of the architecture above, such as ../../dist/nth-1.0.0-1.x86_64.rpm."
  type        = string
}

variable "deb" {
  description = "The package for Ubuntu, of the architecture above, such as ../../dist/nth_1.0.0-1_amd64.deb."
  type        = string
}

variable "settings" {
  description = "A file of settings for every node that starts from the image; it becomes /etc/nth/nth.toml.d/50-image.toml."
  type        = string
  default     = "settings.toml"
}

variable "image_name" {
  description = "How the names of the images begin."
  type        = string
  default     = "eks-node-nth"
}

variable "instance_type" {
  description = "The machine on which an image is made. Empty is a small one of the architecture."
  type        = string
  default     = ""
}

variable "subnet_id" {
  description = "The subnet in which it is made. Empty is the default VPC's."
  type        = string
  default     = ""
}

variable "tags" {
  description = "Tags for the images and their snapshots, and for the machines on which they are made."
  type        = map(string)
  default     = {}
}

locals {
  instance_type = coalesce(var.instance_type, var.architecture == "arm64" ? "t4g.small" : "t3.small")
  # EKS and Amazon Linux call it by another name than Debian and Ubuntu.
  amazon_architecture = var.architecture == "arm64" ? "arm64" : "x86_64"
  made                = formatdate("YYYYMMDD-hhmmss", timestamp())
  tags                = merge({ "nth" = "baked-in" }, var.tags)
}
