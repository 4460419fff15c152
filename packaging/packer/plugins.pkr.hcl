packer {
  required_version = ">= 1.9.4"

  required_plugins {
    amazon = {
      # imds_support came with 1.3.0.
      version = ">= 1.3.0"
      source  = "github.com/hashicorp/amazon"
    }
  }
}
