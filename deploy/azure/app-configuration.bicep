// A store of App Configuration, for protocols and settings that change while Lucius runs.

param name string
param location string
param principalId string
param logs string

// App Configuration Data Reader
var dataReader = '516239f1-63e1-4d78-a4de-a74fb236a071'

resource store 'Microsoft.AppConfiguration/configurationStores@2023-03-01' = {
  name: name
  location: location
  sku: {
    name: 'standard'
  }
  properties: {
    disableLocalAuth: true
  }
}

resource mayRead 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(store.id, principalId, dataReader)
  scope: store
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataReader)
  }
}

resource configurationLogs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'lucius'
  scope: store
  properties: {
    workspaceId: logs
    logs: [
      {
        category: 'Audit'
        enabled: true
      }
    ]
    metrics: [
      {
        category: 'AllMetrics'
        enabled: true
      }
    ]
  }
}

output endpoint string = store.properties.endpoint
